"""Every problem (RFC 9457) as a component, and the answers of operations with problems."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from api.auth.authenticator import Open
from api.http.problems import PROBLEM_TYPE, PROBLEMS, TYPE_PREFIX, explain
from api.openapi.schemas import ref
from api.routes.media import Schema
from api.routes.table import Operation
from headrace.access.api_key import Scope
from headrace.errors import JobError
from headrace.jobs.values.media_types import JSON_TYPE

#: The problems of failed jobs, and so of the operation that returns an output.
JOB_PROBLEMS: Final = tuple(code for code, cls in PROBLEMS.items() if issubclass(cls, JobError))
#: The problems of every operation that requires an API key.
ACCESS_PROBLEMS: Final = ("unauthorized", "forbidden", "rate-limited")
#: The problem that every operation may have ...
INTERNAL: Final = "internal-error"
#: ... and those before an endpoint reads the request.
UNREAD: Final = ("request-timeout", "header-too-large")

_RETRY_AFTER: Final = {
    "Retry-After": {
        "schema": {"type": "integer", "minimum": 1},
        "description": "Seconds after which to retry.",
    }
}
_PROBLEM: Final[Schema] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {
            "type": "string",
            "description": "/problems/<code>; the server explains it at this path.",
        },
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, where, with which value."},
        "instance": {"type": "string", "description": "The path of the request."},
        "remedy": {"type": "string", "description": "What the client can do."},
    },
}
_BULK_WAIT: Final[dict[str, Schema]] = {
    "retry_after": {
        "type": "integer",
        "minimum": 2,
        "description": "In a line of a bulk answer, if it is known: seconds after which to retry.",
    }
}
_EXTENSIONS: Final[dict[str, dict[str, Schema]]] = {
    "invalid-input": {
        "errors": {
            "type": "array",
            "description": "Where the input does not fit, at most ten places.",
            "items": {
                "type": "object",
                "required": ["path", "message", "expected"],
                "properties": {
                    "path": {"type": "string", "description": "A JSON pointer into the input."},
                    "message": {"type": "string"},
                    "expected": {"type": "string", "description": "What the schema asks for."},
                },
            },
        }
    },
    "broker-unavailable": {
        "job": {
            "type": "string",
            "description": "After a submit, the id of the job that may be queued.",
        }
    },
    "models-not-ready": {"models": {"type": "object"}},
    "queue-full": _BULK_WAIT,
    "rate-limited": _BULK_WAIT,
    INTERNAL: {"id": {"type": "string", "description": "Search the API's log for it."}},
    **{
        code: {
            "job": {"type": "string"},
            "retryable": {"type": "boolean"},
            "traceback": {"type": "string"},
        }
        for code in JOB_PROBLEMS
    },
}


def _name(code: str) -> str:
    return f"{PROBLEMS[code].__name__}Problem"


def problem_schemas() -> dict[str, Schema]:
    """Return the schema of each problem by its component's name, and the common one."""
    found = {"Problem": _PROBLEM}
    for code, cls in PROBLEMS.items():
        found[_name(code)] = {
            "title": cls.title,
            "description": explain(code).cause,
            "allOf": [
                ref("Problem"),
                {
                    "properties": {
                        "type": {"const": TYPE_PREFIX + code},
                        "status": {"const": cls.status},
                        **_EXTENSIONS.get(code, {}),
                    }
                },
            ],
        }
    return found


def problem_examples() -> dict[str, dict[str, Any]]:
    """Return an example of each problem, by its code."""
    return {
        code: {
            "summary": cls.title,
            "value": {
                "type": TYPE_PREFIX + code,
                "title": cls.title,
                "status": cls.status,
                "detail": explain(code).cause,
                "instance": "/api/v1/jobs",
            },
        }
        for code, cls in PROBLEMS.items()
    }


def problem_responses(operation: Operation) -> dict[str, dict[str, Any]]:
    """Return the error answers of an operation, by status."""
    common: tuple[str, ...] = (INTERNAL, *UNREAD)
    if "{" in operation.path:
        common += ("not-found",)
    if isinstance(operation.needs, Scope) or operation.needs is Open.ANY_KEY:
        common += ACCESS_PROBLEMS
        # A bulk request has the problem of each line in its answer.
        common += () if operation.name == "submit_bulk" else ("broker-unavailable",)
    answers = {status: _response(codes) for status, codes in _by_status(operation, common).items()}
    if JobError in operation.problems:
        # A handler may fail with a code of its own.
        answers["500"]["content"][PROBLEM_TYPE.decode()]["schema"]["anyOf"].append(ref("Problem"))
    return answers


def typed_errors(operation: Operation, error: type) -> dict[str, dict[str, Any]]:
    """Return the error answers, by status, of an operation whose errors have their own type."""
    common = (
        "invalid-request", *ACCESS_PROBLEMS, "broker-unavailable", "store-unavailable", INTERNAL,
    )  # fmt: skip
    return {
        status: {
            "description": _titles(codes),
            "content": {JSON_TYPE: {"schema": ref(error.__name__)}},
        }
        for status, codes in _by_status(operation, common).items()
    }


def _by_status(operation: Operation, common: Iterable[str]) -> dict[str, list[str]]:
    """Return the codes of an operation's problems, in the order of the table of problems."""
    own = tuple(operation.problems)
    found: dict[int, list[str]] = {}
    for code, cls in PROBLEMS.items():
        if code in common or issubclass(cls, own):
            found.setdefault(operation.status_of(cls), []).append(code)
    return {str(status): found[status] for status in sorted(found)}


def _titles(codes: Iterable[str]) -> str:
    return "; ".join(PROBLEMS[code].title for code in codes) + "."


def _response(codes: list[str]) -> dict[str, Any]:
    schemas = [ref(_name(code)) for code in codes]
    media = {
        "schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas},
        "examples": {code: {"$ref": f"#/components/examples/{code}"} for code in codes},
    }
    response = {"description": _titles(codes), "content": {PROBLEM_TYPE.decode(): media}}
    if any(PROBLEMS[code].retryable and not issubclass(PROBLEMS[code], JobError) for code in codes):
        response["headers"] = _RETRY_AFTER
    return response
