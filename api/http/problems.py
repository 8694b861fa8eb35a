"""Errors as RFC 9457 `application/problem+json`.

`type` is `/problems/<code>`, where the code is that of `headrace.errors`; the server explains it at
that path. `remedy` is what the client can do.
"""

from __future__ import annotations

import inspect
import logging
import uuid
from typing import Any, Final

import msgspec

from api.http.messages import Header, Reply
from headrace.errors import (
    BY_CODE,
    BrokerError,
    BrokerFull,
    ClientError,
    HeadraceError,
    InternalError,
    InvalidInput,
    PathNotFound,
    StoreError,
    StoreFull,
    Throttled,
    Unauthorized,
    drop_tracebacks,
)
from headrace.jobs.job import Job, JobFailure

logger = logging.getLogger(__name__)

PROBLEM_TYPE: Final = b"application/problem+json"
TYPE_PREFIX: Final = "/problems/"
#: Seconds for `Retry-After`.
BROKER_RETRY_S: Final = 1
BROKER_FULL_RETRY_S: Final = 5
#: The challenge of a 401 (RFC 6750).
CHALLENGE: Final[Header] = (b"www-authenticate", b'Bearer realm="headrace"')
#: Every error that the API answers with, by its code.
PROBLEMS: Final[dict[str, type[HeadraceError]]] = {
    code: cls
    for code, cls in BY_CODE.items()
    if code not in ("error", "config-error") and not issubclass(cls, ClientError)
}


def problem(error: HeadraceError, path: str, **members: Any) -> Reply:
    """Return an error, without its traceback, as the answer to `path`, with these `members`."""
    drop_tracebacks(error)
    if isinstance(error, InvalidInput):
        members["errors"] = error.errors
    if error.hint:
        members = {"remedy": error.hint, **members}
    headers = error_headers(error)
    return _reply(error.status, error.code, error.title, error.message, path, members, headers)


def job_problem(job: Job, failure: JobFailure, path: str, *, with_traceback: bool) -> Reply:
    """Return the failure of a job as the answer to a request for its result."""
    title = BY_CODE.get(failure.type, HeadraceError).title
    members: dict[str, Any] = {"retryable": failure.retryable, "job": job.id}
    if with_traceback and (text := job.traceback):
        members["traceback"] = text
    return _reply(failure.status, failure.type, title, failure.message, path, members)


def internal_error(error: Exception, path: str) -> tuple[InternalError, str]:
    """Log an unexpected error; return the error for the client, and the id of both."""
    error_id = str(uuid.uuid4())
    logger.error("internal error", exc_info=error, extra={"error_id": error_id, "path": path})
    drop_tracebacks(error)
    hint = f"Search the log of the API process for {error_id}."
    return InternalError("the API failed on this request", hint=hint), error_id


def error_headers(error: HeadraceError) -> tuple[Header, ...]:
    """Return the headers of an error's answer: when to retry, or how to authenticate."""
    if wait_s := retry_after_s(error):
        return ((b"retry-after", b"%d" % wait_s),)
    return (CHALLENGE,) if isinstance(error, Unauthorized) else ()


class ProblemType(msgspec.Struct):
    """The meaning of a problem type."""

    type: str
    title: str
    status: int
    retryable: bool
    cause: str


def explain(code: str) -> ProblemType:
    """Return the meaning of a problem type; raise PathNotFound if it is unknown."""
    cls = PROBLEMS.get(code)
    if cls is None:
        raise PathNotFound(f"unknown problem type {code[:64]!r}", hint="See docs/api.md.")
    cause = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
    return ProblemType(TYPE_PREFIX + code, cls.title, cls.status, cls.retryable, cause)


def retry_after_s(error: HeadraceError) -> int:
    """Return the seconds after which a retry is useful; 0 if no retry helps."""
    if isinstance(error, Throttled):
        return error.retry_after_s
    if isinstance(error, (BrokerFull, StoreFull)):
        return BROKER_FULL_RETRY_S
    passing = isinstance(error, (BrokerError, StoreError)) and error.retryable
    return BROKER_RETRY_S if passing else 0


def _reply(
    status: int,
    code: str,
    title: str,
    detail: str,
    path: str,
    members: dict[str, Any],
    headers: tuple[Header, ...] = (),
) -> Reply:
    document = {
        "type": TYPE_PREFIX + code,
        "title": title,
        "status": status,
        "detail": detail,
        "instance": path,
        **members,
    }
    return Reply(status, msgspec.json.encode(document), PROBLEM_TYPE, headers)
