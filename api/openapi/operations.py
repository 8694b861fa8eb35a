"""What the descriptions of routes are made of: parameters, answers, operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from api.openapi.job_schemas import IDEMPOTENCY_KEY, JOB_ID, OPTIONS, QUEUED_JOB
from api.openapi.problems import DOOR_PROBLEMS, problem_responses
from api.openapi.shapes import MODEL_NAME, QUEUE_NAME, Schema, ref

JSON: Final = "application/json"
#: Routes that want no API key.
OPEN_TAG: Final = "health"

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
    # No example: the documentation page would send it, and twice for two requests.
    "description": "Under the same key a repeat is the same job, and another request a conflict; "
    "a random UUID is a good one.",
}

_NOT_YET_HEADERS: Final = {
    "Retry-After": {
        "schema": {"type": "integer", "minimum": 1},
        "description": "Seconds after which to ask again.",
    }
}
_APPLIED: Final = {
    "Preference-Applied": {
        "schema": {"type": "string"},
        "description": "The wait that was applied, where one was asked for.",
    }
}
SUBMITTED: Final = {
    "Location": {"schema": {"type": "string"}, "description": "The job's own path."},
    "Idempotency-Replayed": {
        "schema": {"const": "true"},
        "description": "There where the job had been submitted before.",
    },
}


#: Of what a part of a path names: its pattern, and an example where one is there everywhere.
_NAMED: Final[dict[str, tuple[str, str]]] = {
    "model": (MODEL_NAME, "echo"),
    "job_id": (JOB_ID, ""),
    "run_id": (JOB_ID, ""),
    "letter": (r"^[^\s/]{1,255}$", ""),
    "queue": (QUEUE_NAME, "headrace.echo"),
    "code": (r"^[a-z-]{1,64}$", "queue-full"),
    "file_id": (r"^[^\s/]{1,64}$", ""),
    "batch_id": (r"^[^\s/]{1,64}$", ""),
}


def path_parameter(name: str, kind: str = "") -> dict[str, Any]:
    """A part of a path.

    Args:
        name: as the path has it.
        kind: what it names: a model, a job_id, a letter, a queue, a code, a file_id or a
            batch_id; left out, as `name`.
    """
    pattern, example = _NAMED[kind or name]
    found: dict[str, Any] = {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": pattern},
    }
    return {**found, "example": example} if example else found


def option_parameters() -> list[dict[str, Any]]:
    """A job's options as parameters of the query."""
    return [_option(name, schema) for name, schema in OPTIONS.items()]


def _option(name: str, schema: Schema) -> dict[str, Any]:
    bare = {key: value for key, value in schema.items() if key != "description"}
    found = {"name": name, "in": "query", "description": schema["description"]}
    if name == "metadata":
        # An object in a query is JSON as text.
        return {**found, "content": {JSON: {"schema": bare, "example": {"batch": 7}}}}
    if schema["type"] == "array":
        # Between commas.
        return {**found, "schema": bare, "style": "form", "explode": False}
    return {**found, "schema": bare}


def answer(
    description: str,
    schema: Schema,
    *,
    headers: dict[str, Any] | None = None,
    example: Any = None,
    **members: Any,
) -> dict[str, Any]:
    """An answer of JSON; without an example it is as its schema's first."""
    media = {"schema": schema} if example is None else {"schema": schema, "example": example}
    found = {"description": description, "content": {JSON: media}, **members}
    return {**found, "headers": headers} if headers else found


def job_answers(ended: str, *, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answers of a route that gives a job, by then ended or not."""
    common = {**(headers or {}), **_APPLIED}
    links = {
        "job": _link("get_job"),
        "result": _link("get_result"),
        "cancel": _link("cancel_job"),
    }
    return {
        "200": answer(ended, ref("Job"), headers=common, links=links),
        "202": answer(
            "It has not ended yet.",
            ref("Job"),
            headers={**common, **_NOT_YET_HEADERS},
            example=QUEUED_JOB,
            links=links,
        ),
    }


def _link(operation: str) -> dict[str, Any]:
    return {"operationId": operation, "parameters": {"job_id": "$response.body#/id"}}


def operation(
    name: str,
    summary: str,
    tag: str,
    answers: dict[str, Any],
    problems: Iterable[str] = (),
    *,
    parameters: Sequence[dict[str, Any]] = (),
    **members: Any,
) -> dict[str, Any]:
    """One operation.

    Args:
        name: its operationId, by which generated clients name their function.
        summary: what it does, in a few words.
        tag: the group that it is shown in.
        answers: its answers by status, other than problems.
        problems: the codes of the problems that it can answer with, besides internal-error.
        parameters: what it takes besides what its path does.
        members: more members of the operation.
    """
    if tag != OPEN_TAG:
        problems = (*problems, *DOOR_PROBLEMS)
    found: dict[str, Any] = {"operationId": name, "summary": summary, "tags": [tag], **members}
    if parameters:
        found["parameters"] = list(parameters)
    return {**found, "responses": {**answers, **problem_responses(problems)}}
