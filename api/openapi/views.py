"""The routes of models, queues and health in OpenAPI."""

from __future__ import annotations

from typing import Any, Final

from api.openapi.operations import answer, operation, path_parameter
from api.openapi.problems import BROKER_PROBLEMS, PATH_PROBLEMS
from api.openapi.shapes import ref

_HEALTH: Final = "health"


def view_paths() -> dict[str, Any]:
    """The paths of models, queues and health."""
    return {
        "/api/v1/models": {
            "get": operation(
                "list_models",
                "List the registered models and their states",
                "models",
                {"200": answer("Every registered model.", ref("Models"))},
                BROKER_PROBLEMS,
            )
        },
        "/api/v1/models/{model}": {
            "parameters": [path_parameter("model")],
            "get": operation(
                "get_model",
                "One model, with its workers",
                "models",
                {"200": answer("The model.", ref("ModelDetail"))},
                ("model-not-found", *PATH_PROBLEMS, *BROKER_PROBLEMS),
            ),
        },
        "/api/v1/queues": {
            "get": operation(
                "list_queues",
                "Depth, age and jobs in flight of every queue",
                "queues",
                {"200": answer("One queue a model.", ref("Queues"))},
                BROKER_PROBLEMS,
            )
        },
        **_queue_paths(),
        **_health_paths(),
    }


def _queue_paths() -> dict[str, Any]:
    problems = ("queue-not-found", *PATH_PROBLEMS, *BROKER_PROBLEMS)
    verbs = {
        "pause": ("Let no worker claim from a queue", "QueuePause"),
        "resume": ("Let workers claim from a queue again", "QueuePause"),
        "purge": ("Cancel all that waits in a queue", "QueuePurge"),
    }
    return {
        f"/api/v1/queues/{{name}}/{verb}": {
            "parameters": [path_parameter("name", "queue")],
            "post": operation(
                f"{verb}_queue", summary, "queues", {"200": answer("Done.", ref(schema))}, problems
            ),
        }
        for verb, (summary, schema) in verbs.items()
    }


def _health_paths() -> dict[str, Any]:
    models = {
        "name": "models",
        "in": "query",
        "schema": {"enum": ["", "all"], "default": ""},
        "description": "`all` wants a loaded replica of every model.",
    }
    metrics = {
        "description": "Prometheus' text format.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
    return {
        "/live": {
            "get": operation(
                "live",
                "The process answers",
                _HEALTH,
                {"200": answer("It does; of Redis this says nothing.", ref("Live"))},
            )
        },
        "/ready": {
            "get": operation(
                "ready",
                "Redis answers and the models are registered",
                _HEALTH,
                {"200": answer("Requests can be taken.", ref("Ready"))},
                ("invalid-request", "models-not-ready", *BROKER_PROBLEMS),
                parameters=[models],
            )
        },
        "/metrics": {
            "get": operation(
                "metrics", "Metrics in Prometheus' text format", _HEALTH, {"200": metrics}
            )
        },
        "/problems/{code}": {
            "parameters": [path_parameter("code")],
            "get": operation(
                "problem_type",
                "What a problem type means",
                _HEALTH,
                {"200": answer("What it means.", ref("ProblemType"))},
                PATH_PROBLEMS,
            ),
        },
    }
