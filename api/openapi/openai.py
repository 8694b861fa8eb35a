"""What the routes by OpenAI's conventions have in common: errors and lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from api.http.problems import PROBLEMS
from api.openapi.operations import JSON
from api.openapi.problems import DOOR_PROBLEMS, INTERNAL
from api.openapi.shapes import STRING, Schema, array, nullable, object_of, ref

#: What any of these routes may answer with.
COMMON: Final = (*DOOR_PROBLEMS, "broker-unavailable", "store-unavailable", INTERNAL)

ERROR_SCHEMAS: Final[dict[str, Schema]] = {
    "OpenAIError": object_of(
        {
            "error": object_of(
                {
                    "message": STRING,
                    "type": {"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
                    "param": {**nullable(STRING), "description": "Which parameter is wrong."},
                    "code": {**STRING, "description": "The code of a problem, as elsewhere."},
                }
            )
        },
        examples=[
            {
                "error": {
                    "message": "limit: '0' is no number from 1 to 100",
                    "type": "invalid_request_error",
                    "param": "limit",
                    "code": "invalid-request",
                }
            }
        ],
    )
}


def openai_operation(
    name: str,
    summary: str,
    tag: str,
    answers: dict[str, Any],
    problems: Iterable[str] = (),
    *,
    parameters: Sequence[dict[str, Any]] = (),
    **members: Any,
) -> dict[str, Any]:
    """One operation; see `api.openapi.operations.operation`."""
    by_status: dict[str, list[str]] = {}
    for code in ("invalid-request", *problems, *COMMON):
        by_status.setdefault(str(PROBLEMS[code].status), []).append(PROBLEMS[code].title)
    errors = {
        status: {
            "description": "; ".join(titles) + ".",
            "content": {JSON: {"schema": ref("OpenAIError")}},
        }
        for status, titles in sorted(by_status.items())
    }
    found: dict[str, Any] = {"operationId": name, "summary": summary, "tags": [tag], **members}
    if parameters:
        found["parameters"] = list(parameters)
    return {**found, "responses": {**answers, **errors}}


def openai_list(items: Schema, example: dict[str, Any]) -> Schema:
    """A page of objects."""
    page = {
        "object": "list", "data": [example], "first_id": example["id"], "last_id": example["id"],
        "has_more": False,
    }  # fmt: skip
    return object_of(
        {
            "object": {"const": "list"},
            "data": array(items),
            "first_id": nullable(STRING),
            "last_id": {**nullable(STRING), "description": "`after` of the next page."},
            "has_more": {"type": "boolean"},
        },
        examples=[page],
    )


def page_parameters(default: int, most: int) -> list[dict[str, Any]]:
    """What every list takes."""
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    return [
        {
            "name": "after",
            "in": "query",
            "schema": STRING,
            "description": "The id of the last one of the page before; it may be gone by now.",
        },
        {"name": "limit", "in": "query", "schema": limit},
    ]
