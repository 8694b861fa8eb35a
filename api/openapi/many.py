"""The routes of many jobs at once in OpenAPI."""

from __future__ import annotations

import json
from typing import Any, Final

from api.front import BULK, CANCEL, STATUS
from api.openapi.job_schemas import QUEUED_JOB, SUCCEEDED_JOB
from api.openapi.operations import JSON, KEY, answer, operation
from api.openapi.problems import BROKER_PROBLEMS
from api.openapi.shapes import Schema, array, object_of, ref
from api.routes.many import IDS_MAX

_TAG: Final = "jobs"
NDJSON: Final = "application/x-ndjson"
_MANY: Final = ("invalid-request", "payload-too-large", "unsupported-media", *BROKER_PROBLEMS)
_CANCELLED: Final = {"id": QUEUED_JOB["id"], "outcome": "removed", "status": "cancelled"}
_BULK_BODY: Final = ({"model": "echo", "input": {"x": 1}}, {"model": "digits", "input": 1})
_BULK_ANSWER: Final = (
    QUEUED_JOB,
    {
        "error": {
            "type": "/problems/queue-full", "title": "Queue full", "status": 429,
            "detail": "the queue of model digits holds 10000 jobs, its max_queue_depth",
            "instance": BULK, "line": 2,
        }
    },
)  # fmt: skip


def _or_null(name: str) -> Schema:
    return {"anyOf": [ref(name), {"type": "null"}]}


#: By the name of the component.
MANY_SCHEMAS: Final[dict[str, Schema]] = {
    "Ids": object_of(
        {"ids": {**array({"type": "string"}), "maxItems": IDS_MAX}},
        additionalProperties=False,
        examples=[{"ids": [QUEUED_JOB["id"], "order-7"]}],
    ),
    "Jobs": object_of(
        {"jobs": array(_or_null("Job"))},
        description="In the order of the ids; null where there is no such job.",
        examples=[{"jobs": [SUCCEEDED_JOB, None]}],
    ),
    "Cancellations": object_of(
        {"jobs": array(_or_null("Cancellation"))},
        description="In the order of the ids; null where there is no such job.",
        examples=[{"jobs": [_CANCELLED, None]}],
    ),
}
_RESULTS: Final = {
    "name": "results",
    "in": "query",
    "schema": {"type": "string", "enum": ["0", "1"], "default": "1"},
    "description": "0 leaves the results out.",
}


def many_paths() -> dict[str, Any]:
    """The paths of many jobs at once."""
    jobs, fates = answer("The jobs.", ref("Jobs")), answer("Each fate.", ref("Cancellations"))
    return {
        BULK: {"post": _bulk()},
        STATUS: {"post": _by_ids("read_many", "Many jobs by their ids", jobs, [_RESULTS])},
        CANCEL: {"post": _by_ids("cancel_many", "Cancel many jobs by their ids", fates, [])},
    }


def _by_ids(name: str, summary: str, found: Any, parameters: list[Any]) -> dict[str, Any]:
    return operation(
        name,
        summary,
        _TAG,
        {"200": found},
        _MANY,
        parameters=parameters,
        requestBody={"required": True, "content": {JSON: {"schema": ref("Ids")}}},
    )


def _lines(documents: Any) -> dict[str, Any]:
    text = "".join(f"{json.dumps(document)}\n" for document in documents)
    return {NDJSON: {"schema": {"type": "string"}, "example": text}}


def _bulk() -> dict[str, Any]:
    return operation(
        "submit_bulk",
        "Submit many jobs, a line of JSON each",
        _TAG,
        {
            "200": {
                "description": "For each line that is not empty a line, in order, while the body "
                "still comes: a Job, or {error}, the problem of that line with its number as "
                "`line`.",
                "content": _lines(_BULK_ANSWER),
            }
        },
        ("invalid-request", "invalid-id", "unsupported-media"),
        parameters=[KEY],
        requestBody={
            "required": False,
            "description": "Each line is a JobRequest. Of no lines there are no answers.",
            "content": _lines(_BULK_BODY),
        },
    )
