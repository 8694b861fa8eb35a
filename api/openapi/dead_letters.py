"""The dead letters in OpenAPI: routes and schemas."""

from __future__ import annotations

from typing import Any, Final

from api.openapi.operations import JSON, answer, operation, path_parameter
from api.openapi.problems import BROKER_PROBLEMS, PATH_PROBLEMS
from api.openapi.shapes import COUNT, STRING, TIME, Schema, array, nullable, object_of, ref
from api.routes.admin.dead_letters import NAMES_MAX, PAGE_DEFAULT, PATH
from headrace.queue.dead_letters import PAGE_MAX

_TAG: Final = "dead letters"
_PROBLEMS: Final = ("model-not-found", *PATH_PROBLEMS, *BROKER_PROBLEMS)

_PROPERTIES: Final[dict[str, Schema]] = {
    "id": {**STRING, "description": "The job's id; of what is no job, a name of its own."},
    "job_id": nullable(STRING),
    "reason": {**STRING, "description": "The code of a problem, or why the message is no job."},
    "error": STRING,
    "attempts": COUNT,
    "created_at": TIME,
    "died_at": TIME,
    "requeueable": {"type": "boolean", "description": "Whether it can be put back."},
}
_LETTER: Final = {
    "id": "order-7", "job_id": "order-7", "reason": "replica-lost",
    "error": "the model process died each of the 3 times that it ran this input alone",
    "attempts": 4, "created_at": "2026-11-21T10:15:00.123456+00:00",
    "died_at": "2026-11-21T10:16:30.500000+00:00", "requeueable": True,
}  # fmt: skip
_SELECTION: Final = {
    "oneOf": [
        object_of(
            {"ids": {**array(STRING), "maxItems": NAMES_MAX}, "all": {"const": False}},
            optional=("all",),
            additionalProperties=False,
        ),
        object_of(
            {"all": {"const": True}, "ids": {"type": "null"}},
            optional=("ids",),
            additionalProperties=False,
        ),
    ],
    "description": "These, or all that there are now.",
    "examples": [{"ids": ["order-7"]}, {"all": True}],
}

LETTER_SCHEMAS: Final[dict[str, Schema]] = {
    "DeadLetters": object_of(
        {
            "dead_letters": array(object_of(_PROPERTIES)),
            "cursor": {**nullable(STRING), "description": "Of the next page; null at the end."},
        },
        examples=[{"dead_letters": [_LETTER], "cursor": None}],
    ),
    "DeadLetter": object_of(
        {
            **_PROPERTIES,
            "traceback": nullable(STRING),
            "message": {
                **object_of({"text": STRING, "base64": STRING}, optional=("text", "base64")),
                "description": "The task message byte for byte: `text`, or `base64` where it is "
                "none.",
            },
        },
        examples=[{**_LETTER, "traceback": None, "message": {"text": "{}"}}],
    ),
    "Selection": _SELECTION,
    "Requeued": object_of(
        {
            "requeued": COUNT,
            "left": {
                "type": "object",
                "additionalProperties": {"enum": ["unknown", "unreadable", "alive"]},
                "description": "Which were left where they are, and why.",
            },
        },
        examples=[{"requeued": 1, "left": {}}],
    ),
    "Purged": object_of({"purged": COUNT}, examples=[{"purged": 1}]),
}


def letter_paths() -> dict[str, Any]:
    """The paths of dead letters."""
    one = ("letter-not-found", *_PROBLEMS)
    purged = {"200": answer("How many were removed.", ref("Purged"))}
    return {
        PATH: {"parameters": [path_parameter("model")], "get": _list()},
        f"{PATH}/requeue": _of_many(
            "requeue_dead_letters",
            "Put dead letters back into the queue",
            {"200": answer("What became of them.", ref("Requeued"))},
        ),
        f"{PATH}/purge": _of_many(
            "purge_dead_letters", "Remove dead letters for good", purged
        ),
        f"{PATH}/{{name}}": {
            "parameters": [path_parameter("model"), path_parameter("name", "letter")],
            "get": operation(
                "get_dead_letter",
                "One dead letter, whole",
                _TAG,
                {"200": answer("With traceback and message.", ref("DeadLetter"))},
                one,
            ),
            "delete": operation(
                "purge_dead_letter", "Remove one dead letter for good", _TAG, purged, one
            ),
        },
    }  # fmt: skip


def _list() -> dict[str, Any]:
    limit = {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT}
    cursor = {"type": "string", "pattern": "^([0-9]+-.+)?$"}
    return operation(
        "list_dead_letters",
        "The dead letters of a model's queue, the newest first",
        _TAG,
        {"200": answer("A page.", ref("DeadLetters"))},
        ("invalid-request", *_PROBLEMS),
        parameters=[
            {"name": "limit", "in": "query", "schema": limit},
            {
                "name": "cursor",
                "in": "query",
                "schema": cursor,
                "description": "Of the page before.",
            },
        ],
    )


def _of_many(name: str, summary: str, answers: dict[str, Any]) -> dict[str, Any]:
    body = {"required": True, "content": {JSON: {"schema": ref("Selection")}}}
    problems = ("invalid-request", "payload-too-large", *_PROBLEMS)
    return {
        "parameters": [path_parameter("model")],
        "post": operation(name, summary, _TAG, answers, problems, requestBody=body),
    }
