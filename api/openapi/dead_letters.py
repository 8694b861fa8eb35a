"""Dead letters in OpenAPI: operations and schemas."""

from __future__ import annotations

from typing import Final

from api.openapi.operations import (
    COUNT,
    STRING,
    TIME,
    Description,
    Descriptions,
    Schema,
    array,
    described,
    json_body,
    nullable,
    object_of,
    ok,
    parameter,
)
from api.routes.admin.dead_letters import NAMES_MAX, PAGE_DEFAULT
from headrace.queue.dead_letters import PAGE_MAX

_PROPERTIES: Final[dict[str, Schema]] = {
    "id": described(STRING, "The job's id; a generated name if it is not a job."),
    "job_id": nullable(STRING),
    "reason": described(STRING, "The code of a problem, or why the message is not a job."),
    "error": STRING,
    "attempts": COUNT,
    "created_at": TIME,
    "died_at": TIME,
    "requeueable": {"type": "boolean", "description": "Whether it can be requeued."},
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
    "description": "These ids, or all present dead letters.",
    "examples": [{"ids": ["order-7"]}, {"all": True}],
}

LETTER_SCHEMAS: Final[dict[str, Schema]] = {
    "DeadLetters": object_of(
        {
            "dead_letters": array(object_of(_PROPERTIES)),
            "cursor": described(nullable(STRING), "The cursor of the next page; null at the end."),
        },
        examples=[{"dead_letters": [_LETTER], "cursor": None}],
    ),
    "DeadLetter": object_of(
        {
            **_PROPERTIES,
            "traceback": nullable(STRING),
            "message": described(
                object_of({"text": STRING, "base64": STRING}, optional=("text", "base64")),
                "The task message byte for byte: `text`, or `base64` if it is not UTF-8.",
            ),
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
                "description": "The dead letters that were not requeued, and why.",
            },
        },
        examples=[{"requeued": 1, "left": {}}],
    ),
    "Purged": object_of({"purged": COUNT}, examples=[{"purged": 1}]),
}


_ONE: Final = ("letter-not-found", "model-not-found")
_MANY: Final = ("invalid-request", "payload-too-large", "model-not-found")
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT}
_CURSOR: Final = {"type": "string", "pattern": "^([0-9]+-.+)?$"}
_PURGED: Final = ok("The number of removed dead letters.", "Purged")

LETTER_OPERATIONS: Final[Descriptions] = {
    "list_dead_letters": Description(
        "The dead letters of a model's queue, the newest first",
        ok("A page.", "DeadLetters"),
        ("invalid-request", "model-not-found"),
        [parameter("limit", _LIMIT), parameter("cursor", _CURSOR, "Of the previous page.")],
    ),
    "requeue_dead_letters": Description(
        "Requeue dead letters", ok("How many were requeued.", "Requeued"), _MANY,
        body=json_body("Selection"),
    ),
    "purge_dead_letters": Description(
        "Remove dead letters", _PURGED, _MANY, body=json_body("Selection")
    ),
    "get_dead_letter": Description(
        "One dead letter, with its message", ok("With traceback and message.", "DeadLetter"), _ONE
    ),
    "purge_dead_letter": Description("Remove one dead letter", _PURGED, _ONE),
}  # fmt: skip
