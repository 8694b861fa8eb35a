"""The common parts of the operations by OpenAI's conventions: errors and lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from api.http.problems import PROBLEMS
from api.openapi.operations import (
    STRING,
    Schema,
    answer,
    array,
    described,
    nullable,
    object_of,
    parameter,
    ref,
)
from api.openapi.problems import ACCESS_PROBLEMS, INTERNAL

#: The problems of each of these operations.
COMMON: Final = (*ACCESS_PROBLEMS, "broker-unavailable", "store-unavailable", INTERNAL)

ERROR_SCHEMAS: Final[dict[str, Schema]] = {
    "OpenAIError": object_of(
        {
            "error": object_of(
                {
                    "message": STRING,
                    "type": {"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
                    "param": described(nullable(STRING), "The invalid parameter."),
                    "code": described(STRING, "The code of a problem, as elsewhere."),
                }
            )
        },
        examples=[
            {
                "error": {
                    "message": "limit: '0' is not a number from 1 to 100",
                    "type": "invalid_request_error",
                    "param": "limit",
                    "code": "invalid-request",
                }
            }
        ],
    )
}


def openai_errors(codes: Iterable[str]) -> dict[str, Any]:
    """Return the error answers of an operation below `/v1/`, by status."""
    by_status: dict[str, list[str]] = {}
    for code in ("invalid-request", *codes, *COMMON):
        by_status.setdefault(str(PROBLEMS[code].status), []).append(PROBLEMS[code].title)
    return {
        status: answer("; ".join(titles) + ".", ref("OpenAIError"))
        for status, titles in sorted(by_status.items())
    }


def openai_list(items: Schema, example: dict[str, Any]) -> Schema:
    """Return the schema of a page of objects."""
    page = {
        "object": "list", "data": [example], "first_id": example["id"], "last_id": example["id"],
        "has_more": False,
    }  # fmt: skip
    return object_of(
        {
            "object": {"const": "list"},
            "data": array(items),
            "first_id": nullable(STRING),
            "last_id": described(nullable(STRING), "`after` of the next page."),
            "has_more": {"type": "boolean"},
        },
        examples=[page],
    )


def page_parameters(default: int, most: int) -> list[dict[str, Any]]:
    """Return the parameters of every list."""
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    after = "The last id of the previous page; it need not exist any more."
    return [parameter("after", STRING, after), parameter("limit", limit)]
