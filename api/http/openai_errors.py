"""Errors as OpenAI's API writes them, for the operations below `/v1/`, which its SDK calls."""

from __future__ import annotations

import msgspec

from api.http.messages import Reply
from api.http.problems import error_headers
from headrace.errors import HeadraceError, InvalidRequest


class InvalidParameter(InvalidRequest):
    """A parameter, or a member of the body, is not valid.

    Args:
        message: the error.
        param: the name of the parameter.
        hint: what the client can do.
    """

    def __init__(self, message: str, param: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.param = param


def envelope(error: HeadraceError) -> Reply:
    """Return an error as the answer to a request."""
    document = {
        "error": {
            "message": f"{error.message}. {error.hint}" if error.hint else error.message,
            "type": _type_of(error.status),
            "param": getattr(error, "param", None),
            "code": error.code,
        }
    }
    return Reply(error.status, msgspec.json.encode(document), headers=error_headers(error))


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
