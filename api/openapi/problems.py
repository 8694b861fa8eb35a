"""Every problem (RFC 9457) as a component, and the responses of routes that answer with them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

from api.http.problems import PROBLEM_TYPE, PROBLEMS, TYPE_PREFIX
from api.openapi.shapes import Schema, ref
from headrace.errors import HeadraceError, JobError

#: How a job may have ended, and so what a route that gives its output may answer with.
JOB_PROBLEMS: Final = tuple(code for code, cls in PROBLEMS.items() if issubclass(cls, JobError))
#: What any route that asks Redis may answer with.
BROKER_PROBLEMS: Final = ("broker-unavailable",)
#: What a route may answer with whose path has a parameter: what is decoded may be of two parts.
PATH_PROBLEMS: Final = ("not-found",)
#: What any route may answer with that wants an API key, where keys are asked for.
DOOR_PROBLEMS: Final = ("unauthorized", "forbidden", "rate-limited")
#: What any route may answer with.
INTERNAL: Final = "internal-error"
#: ... and what it is answered with before anybody reads it.
UNREAD: Final = ("request-timeout", "header-too-large")

_RETRY_AFTER: Final = {
    "Retry-After": {
        "schema": {"type": "integer", "minimum": 1},
        "description": "Seconds after which to try again.",
    }
}
_PROBLEM: Final[Schema] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {"type": "string", "description": "/problems/<code>; says there what it means."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What was wrong, where, with which value."},
        "instance": {"type": "string", "description": "The path that was asked for."},
        "remedy": {"type": "string", "description": "What to do about it."},
    },
}
_EXTENSIONS: Final[dict[str, dict[str, Schema]]] = {
    "broker-unavailable": {
        "job": {
            "type": "string",
            "description": "After a submit, the id under which it may have been taken.",
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
    """The schema of each problem by its component's name, and the one that all of them share."""
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
    """An example of each problem, by its code."""
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
    """The responses of a route that can answer with these problems, by status."""
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
