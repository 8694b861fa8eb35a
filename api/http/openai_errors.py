"""Errors as OpenAI's API writes them, for the operations below `/v1/`, which its SDK calls."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from api.http.messages import Reply
from api.http.problems import error_headers
from headrace.errors import HeadraceError


class ErrorDetail(msgspec.Struct):
    """What is wrong."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: Annotated[str | None, Meta(description="The invalid parameter.")]
    code: Annotated[str, Meta(description="The code of a problem, as elsewhere.")]


class OpenAIError(msgspec.Struct):
    """An error of an operation below `/v1/`."""

    error: ErrorDetail


def envelope(error: HeadraceError) -> Reply:
    """Return an error as the answer to a request."""
    detail = ErrorDetail(
        message=f"{error.message}. {error.hint}" if error.hint else error.message,
        type="rate_limit_error"
        if error.status == 429
        else "server_error"
        if error.status >= 500
        else "invalid_request_error",
        param=getattr(error, "param", None),
        code=error.code,
    )
    body = msgspec.json.encode(OpenAIError(detail))
    return Reply(error.status, body, headers=error_headers(error))
