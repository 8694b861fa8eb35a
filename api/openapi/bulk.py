"""The operations on many jobs in OpenAPI."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from api.openapi.job_schemas import JOB, QUEUED_JOB, SUCCEEDED_JOB
from api.openapi.jobs import KEY
from api.openapi.operations import (
    COUNT,
    MODEL,
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
    ref,
)
from api.routes.jobs.bulk_status import IDS_MAX
from api.routes.jobs.listing import CURSOR, PAGE_DEFAULT, PAGE_MAX, SINCE_MAX_S
from headrace.jobs.job import State

NDJSON: Final = "application/x-ndjson"
_CANCELLED: Final = {"id": QUEUED_JOB["id"], "outcome": "removed", "status": "cancelled"}
_BULK_BODY: Final = ({"model": "echo", "input": {"x": 1}}, {"model": "digits", "input": 1})
_BULK_ANSWER: Final = (
    QUEUED_JOB,
    {
        "error": {
            "type": "/problems/queue-full", "title": "Queue full", "status": 429,
            "detail": "the queue of model digits holds 10000 jobs, its max_queue_depth",
            "instance": "/api/v1/jobs/bulk", "line": 2,
        }
    },
)  # fmt: skip


def _or_null(name: str) -> Schema:
    return {"anyOf": [ref(name), {"type": "null"}]}


_OUTCOME: Final = ("status", "attempts", "timings", "result", "result_size", "error")


#: By the name of the component.
MANY_SCHEMAS: Final[dict[str, Schema]] = {
    "Ids": object_of(
        {"ids": {**array({"type": "string"}), "maxItems": IDS_MAX}},
        additionalProperties=False,
        examples=[{"ids": [QUEUED_JOB["id"], "order-7"]}],
    ),
    "Jobs": object_of(
        {"jobs": array(_or_null("Job"))},
        description="In the order of the ids; null for an unknown job.",
        examples=[{"jobs": [SUCCEEDED_JOB, None]}],
    ),
    "JobList": object_of(
        {
            "jobs": array(ref("Job")),
            "cursor": described(nullable(STRING), "The cursor of the next page; null at the end."),
        },
        description="The newest first, without results.",
        examples=[{"jobs": [QUEUED_JOB], "cursor": "1795256100123456-order-7"}],
    ),
    "Cancellations": object_of(
        {"jobs": array(_or_null("Cancellation"))},
        description="In the order of the ids; null for an unknown job.",
        examples=[{"jobs": [_CANCELLED, None]}],
    ),
    "Outcome": object_of(
        {name: JOB["properties"][name] for name in _OUTCOME},
        optional=_OUTCOME[1:],
        description="The members of the job object; before the job's end the status alone.",
        examples=[{name: SUCCEEDED_JOB[name] for name in _OUTCOME[:4]}, {"status": "running"}],
    ),
    "Outcomes": object_of(
        {"outcomes": array(_or_null("Outcome"))},
        description="In the order of the ids; null for an unknown job.",
        examples=[{"outcomes": [{"status": "running"}, None]}],
    ),
    "Forgotten": object_of(
        {"forgotten": described(COUNT, "The number of ended jobs that were forgotten.")},
        examples=[{"forgotten": 2}],
    ),
}


def _flag(name: str, default: str, description: str) -> dict[str, Any]:
    schema = {"type": "string", "enum": ["0", "1"], "default": default}
    return parameter(name, schema, description)


def _lines(documents: Sequence[Any]) -> dict[str, Any]:
    text = "".join(f"{json.dumps(document)}\n" for document in documents)
    return {NDJSON: {"schema": STRING, "example": text}}


def _by_ids(
    summary: str, answers: dict[str, Any], parameters: Sequence[dict[str, Any]] = ()
) -> Description:
    problems = ("invalid-request", "payload-too-large", "unsupported-media")
    return Description(summary, answers, problems, parameters, json_body("Ids"))


_STATUSES: Final = {"enum": [state.status for state in State]}
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT}
_BULK: Final = {
    "description": "A line for each line that is not empty, in order, while the body is still "
    "received: a Job, or {error}, the problem of that line with its number as `line`.",
    "content": _lines(_BULK_ANSWER),
}

BULK_OPERATIONS: Final[Descriptions] = {
    "list_jobs": Description(
        "List jobs, newest first",
        ok("A page; it may have fewer jobs than `limit` before the end.", "JobList"),
        ("invalid-request", "model-not-found", "lists-off"),
        [
            {
                "name": "model", "in": "query", "schema": MODEL, "example": "echo",
                "description": "Only this model's jobs.",
            },
            {
                "name": "status", "in": "query", "style": "form", "explode": False,
                "schema": {"type": "array", "minItems": 1, "items": _STATUSES},
                "example": ["queued", "running"],
                "description": "Only jobs of these statuses.",
            },
            {
                "name": "since", "in": "query", "example": "2026-11-21T10:15:00Z",
                "schema": {
                    "anyOf": [TIME, {"type": "number", "minimum": 0, "maximum": SINCE_MAX_S}]
                },
                "description": "Only jobs created at this time or later; a number is seconds "
                "since 1970.",
            },
            parameter("limit", _LIMIT, "Jobs per page."),
            parameter(
                "cursor", {"type": "string", "pattern": CURSOR},
                "The cursor of the previous page, unchanged.",
            ),
        ],
    ),
    "submit_bulk": Description(
        "Submit many jobs, one per line of JSON",
        {"200": _BULK},
        ("invalid-request", "invalid-id", "unsupported-media"),
        [
            parameter(
                "hold", {"type": "number", "minimum": 0},
                "Seconds for which a line without room in its queue is held back, capped at "
                "`bulk_hold_s`, the default.",
                example=0.5,
            ),
            _flag(
                "brief", "0",
                "1 answers `{accepted: N}` for N accepted lines in a row.",
            ),
            _flag(
                "quiet", "0",
                "1 publishes no completion events: the jobs are not listed, and no Celery result "
                "is written when they succeed.",
            ),
            KEY,
        ],
        {
            "required": False,
            "description": "Each line is a JobRequest, which may have a `traceparent` of its own "
            "instead of the request's. A body without lines has an empty answer.",
            "content": _lines(_BULK_BODY),
        },
    ),
    "read_many": _by_ids(
        "Many jobs by their ids", ok("The jobs.", "Jobs"),
        [_flag("results", "1", "0 leaves the results out.")],
    ),
    "cancel_many": _by_ids("Cancel many jobs by their ids", ok("The outcomes.", "Cancellations")),
    "read_outcomes": _by_ids("The outcomes of jobs, in short", ok("The outcomes.", "Outcomes")),
    "forget_many": _by_ids(
        "Forget jobs that have ended", ok("The number of forgotten jobs.", "Forgotten")
    ),
}  # fmt: skip
