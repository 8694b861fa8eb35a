"""Every problem (RFC 9457) as a component, and the answers of operations with problems."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

from api.http.problems import PROBLEM_TYPE, PROBLEMS, TYPE_PREFIX
from api.openapi.operations import Schema, ref
from headrace.errors import HeadraceError, JobError

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
_EXTENSIONS: Final[dict[str, dict[str, Schema]]] = {
    "broker-unavailable": {
        "job": {
            "type": "string",
            "description": "After a submit, the id of the job that may be queued.",
        }
    },
    "models-not-ready": {"models": {"type": "object"}},
    INTERNAL: {"id": {"type": "string", "description": "Search the API's log for it."}},
    **{
        code: {"job": {"type": "string"}, "retryable": {"type": "boolean"}} for code in JOB_PROBLEMS
    },
}


def _name(code: str) -> str:
    return f"{PROBLEMS[code].__name__}Problem"


def _cause(cls: type[HeadraceError]) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def problem_schemas() -> dict[str, Schema]:
    """Return the schema of each problem by its component's name, and the common one."""
    found = {"Problem": _PROBLEM}
    for code, cls in PROBLEMS.items():
        found[_name(code)] = {
            "title": cls.title,
            "description": _cause(cls),
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
                "detail": _cause(cls),
                "instance": "/api/v1/jobs",
            },
        }
        for code, cls in PROBLEMS.items()
    }


def problem_responses(codes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the answers of an operation with these problems, by status."""
    by_status: dict[int, list[str]] = {}
    for code in sorted({*codes, INTERNAL, *UNREAD}, key=list(PROBLEMS).index):
        by_status.setdefault(PROBLEMS[code].status, []).append(code)
    return {str(status): _response(found) for status, found in sorted(by_status.items())}


def _response(codes: list[str]) -> dict[str, Any]:
    schemas = [ref(_name(code)) for code in codes]
    media = {
        "schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas},
        "examples": {code: {"$ref": f"#/components/examples/{code}"} for code in codes},
    }
    response: dict[str, Any] = {
        "description": "; ".join(PROBLEMS[code].title for code in codes) + ".",
        "content": {PROBLEM_TYPE.decode(): media},
    }
    if any(PROBLEMS[code].retryable and not issubclass(PROBLEMS[code], JobError) for code in codes):
        response["headers"] = _RETRY_AFTER
    return response
