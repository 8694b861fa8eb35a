"""Batches in OpenAPI: operations and schemas."""

from __future__ import annotations

from typing import Final

from api.openapi.openai import openai_list, page_parameters
from api.openapi.operations import (
    COUNT,
    STRING,
    Description,
    Descriptions,
    Schema,
    array,
    described,
    json_body,
    nullable,
    object_of,
    ok,
    ref,
)
from api.routes.openai.batches import (
    METADATA_KEY_MAX_CHARS,
    METADATA_MAX,
    METADATA_VALUE_MAX_CHARS,
    PAGE_DEFAULT,
    PAGE_MAX,
    WINDOW,
    WINDOW_DEFAULT,
    BatchRequest,
)
from api.routes.openai.files import ANCHOR
from headrace.batches.files.record import KEEP_MAX_S
from headrace.batches.record import JOBS_ENDPOINT, MODEL_ENDPOINT, MOMENTS, STATUSES

_METADATA: Final[Schema] = {
    "type": "object",
    "maxProperties": METADATA_MAX,
    "propertyNames": {"maxLength": METADATA_KEY_MAX_CHARS},
    "additionalProperties": {"type": "string", "maxLength": METADATA_VALUE_MAX_CHARS},
    "description": "The client's own data, returned with the batch.",
}
_COUNTS: Final = object_of({"total": COUNT, "completed": COUNT, "failed": COUNT})
_ERROR: Final = object_of(
    {
        "code": STRING,
        "message": STRING,
        "line": described(nullable(COUNT), "Counted from 1."),
        "param": nullable(STRING),
    }
)
_ENDPOINT: Final[Schema] = described(
    STRING, f"`{MODEL_ENDPOINT}` of a model, or `{JOBS_ENDPOINT}`: the `url` of each line."
)
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
            "model": described(nullable(STRING), "Null if each line names its own."),
            "errors": {
                "type": ["object", "null"],
                "required": ["object", "data"],
                "properties": {"object": {"const": "list"}, "data": array(_ERROR)},
                "description": "Why it failed.",
            },
            "input_file_id": STRING,
            "completion_window": STRING,
            "status": {"enum": list(STATUSES)},
            "output_file_id": described(nullable(STRING), "After its end."),
            "error_file_id": nullable(STRING),
            "created_at": COUNT,
            **{name: nullable(COUNT) for name in MOMENTS},
            "request_counts": _COUNTS,
            "metadata": {**_METADATA, "type": ["object", "null"]},
            "rerun_of": described(nullable(STRING), "The batch whose failed lines it runs."),
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
                "description": f"Hours, minutes or seconds, at most {KEEP_MAX_S // 3600}h.",
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
            "rerun_of": described(
                nullable(STRING),
                "An ended batch, whose unsuccessful lines run again; absent members are as in it.",
            ),
        },
        optional=BatchRequest.__struct_fields__,
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


_ONE: Final = ("batch-not-found",)

BATCH_OPERATIONS: Final[Descriptions] = {
    "list_batches": Description(
        "List batches, newest first",
        ok("A page.", "Batches"),
        parameters=page_parameters(PAGE_DEFAULT, PAGE_MAX),
    ),
    "create_batch": Description(
        "Run a file of requests",
        ok("The batch, not validated yet.", "Batch"),
        ("payload-too-large", "unsupported-media", "broker-full"),
        body=json_body("BatchRequest"),
    ),
    "get_batch": Description("One batch", ok("The batch.", "Batch"), _ONE),
    "cancel_batch": Description(
        "Cancel a batch; ended lines keep their results",
        ok("It is being cancelled.", "Batch"),
        _ONE,
    ),
}
