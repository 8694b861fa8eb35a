"""The operations on one job in OpenAPI."""

from __future__ import annotations

from typing import Any, Final

from api.openapi.job_schemas import IDEMPOTENCY_KEY, OPTIONS, QUEUED_JOB
from api.openapi.operations import (
    BINARY,
    JSON,
    STRING,
    Description,
    Descriptions,
    Schema,
    answer,
    json_body,
    object_of,
    parameter,
    ref,
)
from api.openapi.problems import JOB_PROBLEMS

_SUBMIT: Final = (
    "invalid-request", "invalid-id", "model-not-found", "conflict", "payload-too-large",
    "unsupported-media", "queue-full", "too-many-in-flight", "broker-full", "store-unavailable",
    "payload-storage-full", "not-found",
)  # fmt: skip
_READ: Final = ("invalid-request", "job-not-found")
_ENDED_IN_TIME: Final = "The job has ended within the wait."
WAIT: Final[list[dict[str, Any]]] = [
    {
        "name": "wait",
        "in": "query",
        "schema": {"type": "number", "minimum": 0},
        "description": "Seconds to wait for the job's end, capped at `max_wait_s`.",
        "example": 10,
    },
    {
        "name": "Prefer",
        "in": "header",
        "schema": {"type": "string"},
        "description": "`wait=N`, as `?wait=N`, which wins.",
    },
]
KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "pattern": IDEMPOTENCY_KEY},
    # No example: the documentation page would send the same key with every request.
    "description": "With the same key a repeat is the same job, and another request a conflict; "
    "use a random UUID.",
}

_NOT_YET_HEADERS: Final = {
    "Retry-After": {
        "schema": {"type": "integer", "minimum": 1},
        "description": "Seconds after which to poll again.",
    }
}
_APPLIED: Final = {
    "Preference-Applied": {
        "schema": {"type": "string"},
        "description": "The wait that was applied, if the request has one.",
    }
}
SUBMITTED: Final = {
    "Location": {"schema": {"type": "string"}, "description": "The job's own path."},
    "Idempotency-Replayed": {
        "schema": {"const": "true"},
        "description": "Present if an earlier request has submitted the job.",
    },
}


def option_parameters() -> list[dict[str, Any]]:
    """Return a job's options as parameters of the query."""
    return [_option(name, schema) for name, schema in OPTIONS.items()]


def _option(name: str, schema: Schema) -> dict[str, Any]:
    bare = {key: value for key, value in schema.items() if key != "description"}
    found = {"name": name, "in": "query", "description": schema["description"]}
    if name == "metadata":
        # An object in a query is JSON text.
        return {**found, "content": {JSON: {"schema": bare, "example": {"batch": 7}}}}
    if schema["type"] == "array":
        # Separated by commas.
        return {**found, "schema": bare, "style": "form", "explode": False}
    return {**found, "schema": bare}


def job_answers(ended: str, *, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the answers of an operation that returns a job, ended (200) or not (202)."""
    common = {**(headers or {}), **_APPLIED}
    links = {
        "job": _link("get_job"),
        "result": _link("get_result"),
        "cancel": _link("cancel_job"),
    }
    return {
        "200": answer(ended, ref("Job"), headers=common, links=links),
        "202": answer(
            "The job has not ended yet.",
            ref("Job"),
            headers={**common, **_NOT_YET_HEADERS},
            example=QUEUED_JOB,
            links=links,
        ),
    }


def _link(operation: str) -> dict[str, Any]:
    return {"operationId": operation, "parameters": {"job_id": "$response.body#/id"}}


_OUTPUT: Final[dict[str, Any]] = {
    "description": "The output, with the content type of its handler.",
    "content": {JSON: {"schema": {}}, "*/*": {"schema": {}}},
    "headers": {
        "Content-Security-Policy": {
            "schema": STRING,
            "description": "An output that is a web page runs no script in this origin.",
        },
        "Accept-Ranges": {"schema": {"const": "bytes"}},
        "ETag": {"schema": STRING, "description": "For If-Range."},
    },
}
_CONTENT_RANGE: Final = {"Content-Range": {"schema": {"type": "string", "pattern": "^bytes "}}}
_SUBMIT_INPUT: Final = Description(
    "Submit the body as the input of a job",
    job_answers(_ENDED_IN_TIME, headers=SUBMITTED),
    _SUBMIT,
    [*option_parameters(), *WAIT, KEY],
    {
        "required": True,
        "description": "The input itself, with any content type; some examples.",
        "content": {
            JSON: {"schema": {}, "example": {"x": 1}},
            "text/plain": {"schema": STRING, "example": "water finds its way"},
            "image/png": {"schema": BINARY},
            "application/octet-stream": {"schema": BINARY},
            "multipart/form-data": {"schema": object_of({"data": BINARY})},
        },
    },
)


def _submit_json(summary: str, component: str, *parameters: dict[str, Any]) -> Description:
    answers = job_answers(_ENDED_IN_TIME, headers=SUBMITTED)
    problems = (*_SUBMIT, "input-forbidden")
    return Description(summary, answers, problems, parameters, json_body(component))


JOB_OPERATIONS: Final[Descriptions] = {
    "submit_input_post": _SUBMIT_INPUT,
    "submit_input_put": _SUBMIT_INPUT,
    "submit_job": _submit_json("Submit a job", "JobRequest", *WAIT, KEY),
    "put_job": _submit_json(
        "Submit a job under an id of your own; a repeat is the same job", "NamedJobRequest", *WAIT
    ),
    "get_job": Description("One job", job_answers("The job has ended."), _READ, WAIT),
    "cancel_job": Description(
        "Cancel a job",
        {
            "200": answer("It will not run, or it had ended before.", ref("Cancellation")),
            "202": answer("It runs; its result will be discarded.", ref("Cancellation")),
        },
        _READ,
    ),
    "get_result": Description(
        "The output of a job; for a failed job, its problem",
        {
            "200": _OUTPUT,
            "206": {
                **_OUTPUT,
                "description": "The requested range of the output.",
                "headers": {**_OUTPUT["headers"], **_CONTENT_RANGE},
            },
            "202": job_answers("")["202"],
            "204": {"description": "A Celery client submitted it with `ignore_result`."},
        },
        (*_READ, "result-freed", "range-not-satisfiable", "store-unavailable", *JOB_PROBLEMS),
        [
            *WAIT,
            parameter("Range", STRING, "One range of bytes, such as bytes=0-99.", where="header"),
            parameter(
                "If-Range", STRING, "Apply the range only if the output has this ETag.",
                where="header",
            ),
        ],
    ),
    "get_events": Description(
        "The events of a job, as server-sent events",
        {
            "200": {
                "description": "Events until the job has ended: `queued`, `scheduled`, `running`, "
                "`progress`, and `ended` with the job object. docs/api.md describes each.",
                "content": {"text/event-stream": {"schema": {}}},
            },
            "204": {"description": "The client has received the last event already."},
        },
        (*_READ, "too-many-streams"),
        [
            parameter("last_event_id", STRING, "Like Last-Event-ID, and with precedence over it."),
            parameter(
                "Last-Event-ID", STRING,
                "The id of the last event that the client has; only later events are sent. An "
                "unknown id is ignored.",
                where="header",
            ),
        ],
    ),
}  # fmt: skip
