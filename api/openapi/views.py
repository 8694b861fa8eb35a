"""Models, queues and health in OpenAPI."""

from __future__ import annotations

from typing import Final

from api.components.model_status import BEST_FIRST, NO_WORKER
from api.openapi.operations import (
    AMOUNT,
    BOOLEAN,
    COUNT,
    MODEL,
    STRING,
    Description,
    Descriptions,
    Schema,
    array,
    described,
    nullable,
    object_of,
    ok,
    parameter,
    ref,
)
from headrace.redis import keys

_MODEL_STATE: Final = {"enum": [*BEST_FIRST, NO_WORKER]}
_ERROR: Final = {
    "type": ["string", "null"],
    "description": "The traceback of a failed load, or why lost processes are not restarted yet.",
}
_SUMMARY: Final[dict[str, Schema]] = {
    "name": MODEL,
    "version": STRING,
    "queue": described(STRING, "The `queue=` of a Celery client."),
    "state": described(
        _MODEL_STATE, "The best of its workers; for a pipeline the worst of its models."
    ),
    "ready_replicas": COUNT,
}
_SUMMARY_EXAMPLE: Final = {
    "name": "digits", "version": "1.0", "queue": "headrace.digits", "state": "ready",
    "ready_replicas": 1,
}  # fmt: skip
_WORKER: Final = object_of(
    {
        "worker": described(STRING, "The name of the worker, unique for each start."),
        "node": described(STRING, "Its Celery node name."),
        "pid": {"type": "integer"},
        "device": STRING,
        "state": described(STRING, "The model's state in this worker."),
        "replicas": COUNT,
        "ready_replicas": COUNT,
        "model_pids": array({"type": "integer"}),
        "error": _ERROR,
    }
)
_WORKER_EXAMPLE: Final = {
    "worker": "cpu0@host-5f1c9a2e", "node": "cpu0@host", "pid": 4710, "device": "cpu",
    "state": "ready", "replicas": 1, "ready_replicas": 1, "model_pids": [4711], "error": None,
}  # fmt: skip

_STAGE: Final = object_of(
    {"name": STRING, "model": MODEL, "from": array(STRING)},
    description="A stage of a pipeline, its model, and the sources of its input.",
)

_QUEUE: Final = object_of(
    {
        "name": described(STRING, "The `queue=` of a Celery client."),
        "model": MODEL,
        "version": STRING,
        "depth": object_of(
            {str(step): COUNT for step in keys.STEPS},
            description="Waiting jobs, by priority step.",
        ),
        "paused": {"type": "boolean", "description": "Whether the queue is paused."},
        "scheduled": COUNT,
        "in_flight": COUNT,
        "dead_letters": COUNT,
        "max_queue_depth": COUNT,
        "oldest_age_s": {"type": ["number", "null"], "minimum": 0},
    }
)
_QUEUE_EXAMPLE: Final = {
    "name": "headrace.digits", "model": "digits", "version": "1.0",
    "depth": {"0": 12, "3": 0, "6": 0, "9": 400}, "paused": False, "scheduled": 2, "in_flight": 32,
    "dead_letters": 0, "max_queue_depth": 10000, "oldest_age_s": 0.25,
}  # fmt: skip

_READINESS: Final = object_of(
    {"state": _MODEL_STATE, "ready_replicas": COUNT, "error": STRING}, optional=("error",)
)

#: By the name of the component.
VIEW_SCHEMAS: Final[dict[str, Schema]] = {
    "Model": object_of(_SUMMARY, examples=[_SUMMARY_EXAMPLE]),
    "Models": object_of(
        {"models": array(ref("Model"))}, examples=[{"models": [_SUMMARY_EXAMPLE]}]
    ),
    "ModelDetail": object_of(
        {
            **_SUMMARY,
            "handler": STRING,
            "device": STRING,
            "replicas": COUNT,
            "weight": AMOUNT,
            "max_batch_size": COUNT,
            "max_batch_delay_ms": AMOUNT,
            "allowed_batch_sizes": nullable(array(COUNT)),
            "max_batch_cost": nullable(COUNT),
            "cost": STRING,
            "batch_key": nullable(STRING),
            "max_queue_depth": COUNT,
            "timeout_s": {"type": ["number", "null"]},
            "min_timeout_s": AMOUNT,
            "max_restarts_per_minute": COUNT,
            "max_retries": {"type": ["integer", "null"]},
            "retry_backoff_s": AMOUNT,
            "retry_backoff_max_s": AMOUNT,
            "error": _ERROR,
            "workers": array(_WORKER),
            "max_running": COUNT,
            "max_items": COUNT,
            "stages": array(_STAGE),
            "result": array(STRING),
        },
        optional=("max_running", "max_items", "stages", "result"),
        examples=[
            {
                **_SUMMARY_EXAMPLE, "handler": "digits", "device": "auto", "replicas": 1,
                "weight": 1.0, "max_batch_size": 64, "max_batch_delay_ms": 5.0,
                "allowed_batch_sizes": None, "max_batch_cost": None, "cost": "bytes",
                "batch_key": None, "max_queue_depth": 10000,
                "timeout_s": 60.0, "min_timeout_s": 0.1, "max_restarts_per_minute": 10,
                "max_retries": None, "retry_backoff_s": 1.0, "retry_backoff_max_s": 60.0,
                "error": None,
                "workers": [_WORKER_EXAMPLE],
            }
        ],
    ),
    "Queues": object_of({"queues": array(_QUEUE)}, examples=[{"queues": [_QUEUE_EXAMPLE]}]),
    "QueuePause": object_of(
        {"name": STRING, "paused": BOOLEAN},
        examples=[{"name": "headrace.digits", "paused": True}],
    ),
    "QueuePurge": object_of(
        {"name": STRING, "cancelled": COUNT},
        examples=[{"name": "headrace.digits", "cancelled": 414}],
    ),
    "Live": object_of({"status": {"const": "live"}}, examples=[{"status": "live"}]),
    "Ready": object_of(
        {
            "status": {"const": "ready"},
            "broker": {"const": "ok"},
            "models": {"type": "object", "additionalProperties": _READINESS},
        },
        examples=[
            {
                "status": "ready", "broker": "ok",
                "models": {"digits": {"state": "ready", "ready_replicas": 1}},
            }
        ],
    ),
    "ProblemType": object_of(
        {
            "type": STRING,
            "title": STRING,
            "status": {"type": "integer"},
            "retryable": BOOLEAN,
            "cause": STRING,
        },
        examples=[
            {
                "type": "/problems/queue-full", "title": "Queue full", "status": 429,
                "retryable": True,
                "cause": "The model's queue holds max_queue_depth jobs; nothing was enqueued.",
            }
        ],
    ),
}  # fmt: skip

_QUEUE_PROBLEMS: Final = ("queue-not-found",)
_MODELS: Final = parameter(
    "models",
    {"enum": ["", "all"], "default": ""},
    "`all` requires a loaded replica of every model.",
)
_METRICS: Final = {
    "description": "Prometheus' text format.", "content": {"text/plain": {"schema": STRING}}
}  # fmt: skip

VIEW_OPERATIONS: Final[Descriptions] = {
    "list_models": Description(
        "List the registered models and their states", ok("Every registered model.", "Models")
    ),
    "get_model": Description(
        "One model, with its workers", ok("The model.", "ModelDetail"), ("model-not-found",)
    ),
    "list_queues": Description(
        "Depth, age and jobs in flight of every queue", ok("One queue per model.", "Queues")
    ),
    "pause_queue": Description(
        "Pause a queue: no worker claims from it", ok("Done.", "QueuePause"), _QUEUE_PROBLEMS
    ),
    "resume_queue": Description("Resume a queue", ok("Done.", "QueuePause"), _QUEUE_PROBLEMS),
    "purge_queue": Description(
        "Cancel all waiting jobs of a queue", ok("Done.", "QueuePurge"), _QUEUE_PROBLEMS
    ),
    "live": Description("The process answers", ok("It does; Redis is not checked.", "Live")),
    "ready": Description(
        "Redis answers and the models are registered",
        ok("Requests are accepted.", "Ready"),
        ("invalid-request", "models-not-ready", "broker-unavailable"),
        [_MODELS],
    ),
    "metrics": Description("Metrics in Prometheus' text format", {"200": _METRICS}),
    "problem_type": Description("The meaning of a problem type", ok("The meaning.", "ProblemType")),
}
