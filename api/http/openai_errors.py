"""Errors as OpenAI's API writes them, for the operations below `/v1/`, which its SDK calls."""

from __future__ import annotations

import logging
import uuid

import msgspec

from api.http.messages import Header, Reply
from api.http.problems import CHALLENGE, retry_after_s
from headrace.errors import HeadraceError, InternalError, InvalidRequest, Unauthorized

logger = logging.getLogger(__name__)


class InvalidParameter(InvalidRequest):
    """A parameter, or a member of the body, does not fit.

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
    headers: tuple[Header, ...] = ()
    wait_s = retry_after_s(error)
    if wait_s:
        headers = ((b"retry-after", b"%d" % wait_s),)
    elif isinstance(error, Unauthorized):
        headers = (CHALLENGE,)
    document = {
        "error": {
            "message": f"{error.message}. {error.hint}" if error.hint else error.message,
            "type": _type_of(error.status),
            "param": getattr(error, "param", None),
            "code": error.code,
        }
    }
    return Reply(error.status, msgspec.json.encode(document), headers=headers)


def unexpected_envelope(error: Exception, path: str) -> Reply:
    """Return an internal error: its details go to the log, its id also to the client."""
    error_id = str(uuid.uuid4())
    logger.error("internal error", exc_info=error, extra={"error_id": error_id, "path": path})
    hint = f"Search the log of the API process for {error_id}."
    return envelope(InternalError("the API failed on this request", hint=hint))


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
