"""The routes of many jobs at once in OpenAPI."""

from __future__ import annotations

import json
from typing import Any, Final

from api.openapi.job_schemas import JOB, QUEUED_JOB, SUCCEEDED_JOB
from api.openapi.operations import JSON, KEY, answer, operation
from api.openapi.problems import BROKER_PROBLEMS
from api.openapi.shapes import COUNT, MODEL, STRING, TIME, Schema, array, nullable, object_of, ref
from api.routes.jobs.bulk_status import IDS_MAX
from api.routes.jobs.listing import CURSOR, PAGE_DEFAULT, PAGE_MAX, SINCE_MAX_S
from headrace.jobs.job import State

_TAG: Final = "jobs"
BULK: Final = "/api/v1/jobs/bulk"
STATUS: Final = "/api/v1/jobs/status"
CANCEL: Final = "/api/v1/jobs/cancel"
OUTCOMES: Final = "/api/v1/jobs/outcomes"
FORGET: Final = "/api/v1/jobs/forget"
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
        description="In the order of the ids; null where there is no such job.",
        examples=[{"jobs": [SUCCEEDED_JOB, None]}],
    ),
    "JobList": object_of(
        {
            "jobs": array(ref("Job")),
            "cursor": {**nullable(STRING), "description": "Of the next page; null at the end."},
        },
        description="The newest first, without results.",
        examples=[{"jobs": [QUEUED_JOB], "cursor": "1795256100123456-order-7"}],
    ),
    "Cancellations": object_of(
        {"jobs": array(_or_null("Cancellation"))},
        description="In the order of the ids; null where there is no such job.",
        examples=[{"jobs": [_CANCELLED, None]}],
    ),
    "Outcome": object_of(
        {name: JOB["properties"][name] for name in _OUTCOME},
        optional=_OUTCOME[1:],
        description="As the job object has it; before the job's end its status alone.",
        examples=[{name: SUCCEEDED_JOB[name] for name in _OUTCOME[:4]}, {"status": "running"}],
    ),
    "Outcomes": object_of(
        {"outcomes": array(_or_null("Outcome"))},
        description="In the order of the ids; null where there is no such job.",
        examples=[{"outcomes": [{"status": "running"}, None]}],
    ),
    "Forgotten": object_of(
        {"forgotten": {**COUNT, "description": "How many of them there were, and had ended."}},
        examples=[{"forgotten": 2}],
    ),
}
_HOLD: Final = {
    "name": "hold",
    "in": "query",
    "schema": {"type": "number", "minimum": 0},
    "description": "Seconds that a line without room in its queue is held back, capped at "
    "`bulk_hold_s`, which is the default.",
    "example": 0.5,
}
_BRIEF: Final = {
    "name": "brief",
    "in": "query",
    "schema": {"type": "string", "enum": ["0", "1"], "default": "0"},
    "description": "1 answers with `{accepted: N}` for N lines in a row whose jobs are there.",
}
_QUIET: Final = {
    "name": "quiet",
    "in": "query",
    "schema": {"type": "string", "enum": ["0", "1"], "default": "0"},
    "description": "1 is for jobs whose ends only who asks is to hear of: they are not listed, "
    "and no Celery result is written when they succeed.",
}
_RESULTS: Final = {
    "name": "results",
    "in": "query",
    "schema": {"type": "string", "enum": ["0", "1"], "default": "1"},
    "description": "0 leaves the results out.",
}


_LIST: Final[list[dict[str, Any]]] = [
    {
        "name": "model", "in": "query", "schema": MODEL, "example": "echo",
        "description": "Only this model's jobs.",
    },
    {
        "name": "status", "in": "query", "style": "form", "explode": False,
        "schema": {
            "type": "array", "minItems": 1, "items": {"enum": [state.status for state in State]},
        },
        "example": ["queued", "running"],
        "description": "Only jobs of these statuses.",
    },
    {
        "name": "since", "in": "query", "example": "2026-11-21T10:15:00Z",
        "schema": {"anyOf": [TIME, {"type": "number", "minimum": 0, "maximum": SINCE_MAX_S}]},
        "description": "Only jobs that were created then or later; a number is seconds since 1970.",
    },
    {
        "name": "limit", "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT},
        "description": "Jobs a page.",
    },
    {
        "name": "cursor", "in": "query", "schema": {"type": "string", "pattern": CURSOR},
        "description": "The cursor of the page before, as it is.",
    },
]  # fmt: skip


def list_operation() -> dict[str, Any]:
    """The list of jobs."""
    return operation(
        "list_jobs",
        "List jobs, newest first",
        _TAG,
        {
            "200": answer(
                "A page; fewer jobs than its limit are no sign of the end.", ref("JobList")
            )
        },
        ("invalid-request", "model-not-found", "lists-off", *BROKER_PROBLEMS),
        parameters=_LIST,
    )


def many_paths() -> dict[str, Any]:
    """The paths of many jobs at once."""
    jobs, fates = answer("The jobs.", ref("Jobs")), answer("Each fate.", ref("Cancellations"))
    outcomes = answer("The outcomes.", ref("Outcomes"))
    forgotten = answer("How many are forgotten.", ref("Forgotten"))
    return {
        BULK: {"post": _bulk()},
        STATUS: {"post": _by_ids("read_many", "Many jobs by their ids", jobs, [_RESULTS])},
        CANCEL: {"post": _by_ids("cancel_many", "Cancel many jobs by their ids", fates, [])},
        OUTCOMES: {"post": _by_ids("read_outcomes", "How many jobs have ended", outcomes, [])},
        FORGET: {"post": _by_ids("forget_many", "Forget jobs that have ended", forgotten, [])},
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
        parameters=[_HOLD, _BRIEF, _QUIET, KEY],
        requestBody={
            "required": False,
            "description": "Each line is a JobRequest, which may have a `traceparent` of its own "
            "in place of the request's. Of no lines there are no answers.",
            "content": _lines(_BULK_BODY),
        },
    )
