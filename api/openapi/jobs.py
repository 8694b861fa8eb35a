"""The routes of jobs in OpenAPI."""

from __future__ import annotations

from typing import Any, Final

from api.openapi.bulk import list_operation
from api.openapi.operations import (
    JSON,
    KEY,
    SUBMITTED,
    WAIT,
    answer,
    job_answers,
    operation,
    option_parameters,
    path_parameter,
)
from api.openapi.problems import BROKER_PROBLEMS, JOB_PROBLEMS, PATH_PROBLEMS
from api.openapi.shapes import object_of, ref

_TAG: Final = "jobs"
MODEL_JOBS: Final = "/api/v1/models/{model}/jobs"
JOBS: Final = "/api/v1/jobs"
JOB: Final = "/api/v1/jobs/{job_id}"
RESULT: Final = "/api/v1/jobs/{job_id}/result"
EVENTS: Final = "/api/v1/jobs/{job_id}/events"
_SUBMIT: Final = (
    "invalid-request", "invalid-id", "model-not-found", "conflict", "payload-too-large",
    "unsupported-media", "queue-full", "too-many-in-flight", "broker-full", "store-unavailable",
    "payload-storage-full", *PATH_PROBLEMS, *BROKER_PROBLEMS,
)  # fmt: skip
_READ: Final = ("invalid-request", "job-not-found", *PATH_PROBLEMS, *BROKER_PROBLEMS)
_RANGE: Final = [
    {
        "name": "Range",
        "in": "header",
        "schema": {"type": "string"},
        "description": "One range of bytes, such as bytes=0-99.",
    },
    {
        "name": "If-Range",
        "in": "header",
        "schema": {"type": "string"},
        "description": "The range only of the output that has this ETag.",
    },
]
_ENDED_IN_TIME: Final = "It has ended within the wait."


def job_paths() -> dict[str, Any]:
    """The paths of jobs."""
    return {
        MODEL_JOBS: {
            "parameters": [path_parameter("model")],
            **{method.lower(): _submit_input(method.lower()) for method in ("POST", "PUT")},
        },
        JOBS: {
            "get": list_operation(),
            "post": _submit_json("submit_job", "Submit a job", "JobRequest", [*WAIT, KEY]),
        },
        JOB: {
            "parameters": [path_parameter("job_id")],
            "get": operation(
                "get_job", "One job", _TAG, job_answers("It has ended."), _READ, parameters=WAIT
            ),
            "put": _submit_json(
                "put_job",
                "Submit a job under an id of your own; a repeat is the same job",
                "NamedJobRequest",
                WAIT,
            ),
            "delete": _cancel_job(),
        },
        RESULT: {"parameters": [path_parameter("job_id")], "get": _get_result()},
        EVENTS: {"parameters": [path_parameter("job_id")], "get": _get_events()},
    }


def _submit_input(method: str) -> dict[str, Any]:
    body = {
        JSON: {"schema": {}, "example": {"x": 1}},
        "text/plain": {"schema": {"type": "string"}, "example": "water finds its way"},
        "image/png": {"schema": {"type": "string", "format": "binary"}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        "multipart/form-data": {
            "schema": object_of({"data": {"type": "string", "format": "binary"}}),
        },
    }
    return operation(
        f"submit_input_{method}",
        "Submit the body as the input of a job",
        _TAG,
        job_answers(_ENDED_IN_TIME, headers=SUBMITTED),
        _SUBMIT,
        parameters=[*option_parameters(), *WAIT, KEY],
        requestBody={
            "required": True,
            "description": "The input itself, under any content type; here are some.",
            "content": body,
        },
    )


def _submit_json(name: str, summary: str, schema: str, parameters: list[Any]) -> dict[str, Any]:
    return operation(
        name,
        summary,
        _TAG,
        job_answers(_ENDED_IN_TIME, headers=SUBMITTED),
        (*_SUBMIT, "input-forbidden"),
        parameters=parameters,
        requestBody={"required": True, "content": {JSON: {"schema": ref(schema)}}},
    )


def _cancel_job() -> dict[str, Any]:
    answers = {
        "200": answer("It will not run, or it had ended before.", ref("Cancellation")),
        "202": answer("It runs; its result will be discarded.", ref("Cancellation")),
    }
    return operation("cancel_job", "Cancel a job", _TAG, answers, _READ)


def _get_events() -> dict[str, Any]:
    last_id = {"schema": {"type": "string"}}
    stream = {
        "description": "Events until the job has ended: `queued`, `scheduled`, `running`, "
        "`progress`, and `ended` with the job object. docs/api.md says what is in each.",
        "content": {"text/event-stream": {"schema": {}}},
    }
    return operation(
        "get_events",
        "What becomes of a job, as server-sent events",
        _TAG,
        {"200": stream, "204": {"description": "The end was told already."}},
        (*_READ, "too-many-streams"),
        parameters=[
            {
                "name": "last_event_id",
                "in": "query",
                "description": "As Last-Event-ID, which it wins over.",
                **last_id,
            },
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "The id of the last event that the client has: only what came "
                "after it is told. An id that is none of ours counts for nothing.",
                **last_id,
            },
        ],
    )


def _get_result() -> dict[str, Any]:
    not_yet = job_answers("")["202"]
    output: dict[str, Any] = {
        "description": "The output, with the content type that its handler gave it.",
        "content": {JSON: {"schema": {}}, "*/*": {"schema": {}}},
        "headers": {
            "Content-Security-Policy": {
                "schema": {"type": "string"},
                "description": "An output that is a web page runs no script in this origin.",
            },
            "Accept-Ranges": {"schema": {"const": "bytes"}},
            "ETag": {"schema": {"type": "string"}, "description": "For If-Range."},
        },
    }
    content_range = {"schema": {"type": "string", "pattern": "^bytes "}}
    part = {
        **output,
        "description": "The bytes of the output that Range asked for.",
        "headers": {**output["headers"], "Content-Range": content_range},
    }
    found = operation(
        "get_result",
        "The output as it is; of a job that failed, its problem",
        _TAG,
        {
            "200": output,
            "206": part,
            "202": not_yet,
            "204": {"description": "A Celery client asked for no result (`ignore_result`)."},
        },
        (*_READ, "result-freed", "range-not-satisfiable", "store-unavailable", *JOB_PROBLEMS),
        parameters=[*WAIT, *_RANGE],
    )
    # A handler may fail with a code of its own.
    found["responses"]["500"]["content"]["application/problem+json"]["schema"]["anyOf"].append(
        ref("Problem")
    )
    return found
