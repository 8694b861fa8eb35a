"""The batches in OpenAPI: routes and schemas."""

from __future__ import annotations

from typing import Any, Final

from api.openapi.openai import openai_list, openai_operation, page_parameters
from api.openapi.operations import JSON, answer, path_parameter
from api.openapi.shapes import COUNT, STRING, Schema, array, nullable, object_of, ref
from api.routes.openai.batches import (
    METADATA_KEY_MAX_CHARS,
    METADATA_MAX,
    METADATA_VALUE_MAX_CHARS,
    PAGE_DEFAULT,
    PAGE_MAX,
    WINDOW,
    WINDOW_DEFAULT,
)
from api.routes.openai.files import ANCHOR
from headrace.batches.files.record import KEEP_MAX_S
from headrace.batches.record import JOBS_ENDPOINT, MODEL_ENDPOINT, MOMENTS, STATUSES

_TAG: Final = "batches"
_METADATA: Final[Schema] = {
    "type": "object",
    "maxProperties": METADATA_MAX,
    "propertyNames": {"maxLength": METADATA_KEY_MAX_CHARS},
    "additionalProperties": {"type": "string", "maxLength": METADATA_VALUE_MAX_CHARS},
    "description": "The client's own, given back with the batch.",
}
_COUNTS: Final = object_of({"total": COUNT, "completed": COUNT, "failed": COUNT})
_ERROR: Final = object_of(
    {
        "code": STRING,
        "message": STRING,
        "line": {**nullable(COUNT), "description": "Counted from 1."},
        "param": nullable(STRING),
    }
)
_ENDPOINT: Final[Schema] = {
    **STRING,
    "description": f"`{MODEL_ENDPOINT}` of a model, or `{JOBS_ENDPOINT}`: the `url` of each line.",
}
_BATCH: Final = {
    "id": "batch_0193f1a2b3c47d5e8f60718293a4b5c6", "object": "batch",
    "endpoint": "/api/v1/models/echo/jobs", "model": "echo", "errors": None,
    "input_file_id": "file-0193f1a2b3c47d5e8f60718293a4b5c6", "completion_window": "24h",
    "status": "completed", "output_file_id": "file-0193f1a2b3c47d5e8f60718293a4b5c7",
    "error_file_id": None, "created_at": 1795279329,
    **dict.fromkeys(MOMENTS), "in_progress_at": 1795279330, "expires_at": 1795365729,
    "finalizing_at": 1795279400, "completed_at": 1795279401,
    "request_counts": {"total": 1000, "completed": 1000, "failed": 0},
    "metadata": {"night": "7"}, "rerun_of": None,
}  # fmt: skip

BATCH_SCHEMAS: Final[dict[str, Schema]] = {
    "Batch": object_of(
        {
            "id": STRING,
            "object": {"const": "batch"},
            "endpoint": _ENDPOINT,
            "model": {**nullable(STRING), "description": "Null where each line has its own."},
            "errors": {
                "type": ["object", "null"],
                "required": ["object", "data"],
                "properties": {"object": {"const": "list"}, "data": array(_ERROR)},
                "description": "Why it failed.",
            },
            "input_file_id": STRING,
            "completion_window": STRING,
            "status": {"enum": list(STATUSES)},
            "output_file_id": {**nullable(STRING), "description": "Once it has ended."},
            "error_file_id": nullable(STRING),
            "created_at": COUNT,
            **{name: nullable(COUNT) for name in MOMENTS},
            "request_counts": _COUNTS,
            "metadata": {**_METADATA, "type": ["object", "null"]},
            "rerun_of": {**nullable(STRING), "description": "Whose failed lines it runs."},
        },
        examples=[_BATCH],
    ),
    "Batches": openai_list(ref("Batch"), _BATCH),
    "BatchRequest": object_of(
        {
            "input_file_id": nullable(STRING),
            "endpoint": {**_ENDPOINT, "type": ["string", "null"]},
            "completion_window": {
                **nullable(STRING),
                "pattern": WINDOW,
                "default": WINDOW_DEFAULT,
                "description": f"Hours, minutes or seconds, {KEEP_MAX_S // 3600}h at the most.",
            },
            "metadata": {**_METADATA, "type": ["object", "null"]},
            "output_expires_after": {
                "type": ["object", "null"],
                "required": ["anchor", "seconds"],
                "properties": {
                    "anchor": {"const": ANCHOR},
                    "seconds": {"type": "integer", "minimum": 1, "maximum": KEEP_MAX_S},
                },
                "additionalProperties": False,
            },
            "rerun_of": {
                **nullable(STRING),
                "description": "A batch that has ended: its lines that did not succeed run again. "
                "What else is left out is as that batch had it.",
            },
        },
        optional=(
            "input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after",
            "rerun_of",
        ),
        additionalProperties=False,
        anyOf=[{"required": ["input_file_id", "endpoint"]}, {"required": ["rerun_of"]}],
        examples=[
            {
                "input_file_id": _BATCH["input_file_id"], "endpoint": _BATCH["endpoint"],
                "completion_window": "24h",
            },
            {"rerun_of": _BATCH["id"]},
        ],
    ),
}  # fmt: skip


def batch_paths() -> dict[str, Any]:
    """The paths of batches."""
    one = ("batch-not-found",)
    body = {"required": True, "content": {JSON: {"schema": ref("BatchRequest")}}}
    return {
        "/v1/batches": {
            "get": openai_operation(
                "list_batches",
                "List batches, newest first",
                _TAG,
                {"200": answer("A page.", ref("Batches"))},
                parameters=page_parameters(PAGE_DEFAULT, PAGE_MAX),
            ),
            "post": openai_operation(
                "create_batch",
                "Run a file of requests",
                _TAG,
                {"200": answer("The batch, which is yet to be validated.", ref("Batch"))},
                ("payload-too-large", "unsupported-media", "broker-full"),
                requestBody=body,
            ),
        },
        "/v1/batches/{batch_id}": {
            "parameters": [path_parameter("batch_id")],
            "get": openai_operation(
                "get_batch", "One batch", _TAG, {"200": answer("The batch.", ref("Batch"))}, one
            ),
        },
        "/v1/batches/{batch_id}/cancel": {
            "parameters": [path_parameter("batch_id")],
            "post": openai_operation(
                "cancel_batch",
                "Cancel a batch; what has ended is kept",
                _TAG,
                {"200": answer("It is being cancelled.", ref("Batch"))},
                one,
            ),
        },
    }
