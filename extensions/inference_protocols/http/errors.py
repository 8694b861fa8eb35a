"""Errors as v2 has them: a status, and `{"error": text}`."""

from __future__ import annotations

from typing import Final

import msgspec

from api.http.messages import NO_STORE, Header, Reply
from api.http.problems import error_headers
from headrace.errors import (
    HeadraceError,
    InputError,
    JobExpired,
    JobTimeout,
    MethodNotAllowed,
    RequestError,
    Throttled,
    drop_tracebacks,
)

#: Statuses of requests that Triton's clients know; any other is 400.
_KEPT: Final = frozenset({401, 403, 404, 405, 408, 413, 431, 501, 503})


def status_of(error: HeadraceError) -> int:
    """Return the status of an error, as Triton would answer it."""
    if isinstance(error, (Throttled, JobExpired)):
        return 503
    if isinstance(error, RequestError):
        return error.status if error.status in _KEPT else 400
    if isinstance(error, InputError):
        return 400
    return 504 if isinstance(error, JobTimeout) else error.status


def error_reply(error: HeadraceError, headers: tuple[Header, ...] = ()) -> Reply:
    """Return the answer for an error, which loses its traceback."""
    drop_tracebacks(error)
    text = error.message_with_hint
    if isinstance(error, MethodNotAllowed):
        text = "Method Not Allowed"
    elif isinstance(error, JobExpired):
        text = f"Request timeout expired: {text}"
    body = msgspec.json.encode({"error": text})
    return Reply(status_of(error), body, headers=(NO_STORE, *error_headers(error), *headers))
