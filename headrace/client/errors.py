"""Answers that are no success, and jobs that did not succeed, as errors of the one tree."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from headrace.client.models import Failure, Job
from headrace.client.sansio import HttpResponse
from headrace.errors import (
    BY_CODE,
    ClientError,
    HeadraceError,
    JobError,
    RequestError,
    Throttled,
    UnexpectedAnswer,
)

PROBLEM_TYPE: Final = "application/problem+json"
SHOWN_MAX_CHARS: Final = 200
_WITHOUT_SUCCESS: Final = {
    "cancelled": Failure(type="cancelled", message="the job was cancelled"),
    "expired": Failure(type="expired", message="the job was not started in time"),
}

T = TypeVar("T")
E = TypeVar("E", bound=HeadraceError)


class Problem(msgspec.Struct):
    """RFC 9457, as far as the client acts on it."""

    type: str = ""
    title: str = ""
    status: int = 0
    detail: str = ""
    remedy: str = ""
    retryable: bool | None = None
    job: str = ""

    @property
    def code(self) -> str:
        """The last part of its type."""
        return self.type.rpartition("/")[2]


def problem_of(answer: HttpResponse) -> Problem | None:
    """The problem that an answer is; None where it is none."""
    if answer.headers.get("content-type", "").partition(";")[0].strip() != PROBLEM_TYPE:
        return None
    try:
        return msgspec.json.decode(answer.body, type=Problem)
    except msgspec.DecodeError:
        return None


def error_of(answer: HttpResponse, problem: Problem | None) -> HeadraceError:
    """The error that an answer is."""
    if problem is None:
        shown = answer.body[:SHOWN_MAX_CHARS].decode("utf-8", "replace").strip()
        return UnexpectedAnswer(
            f"the server answered {answer.status} with what Headrace never says: {shown!r}",
            hint="Is the address that of Headrace's API, and does a proxy stand before it?",
        )
    error = problem_error(problem)
    if isinstance(error, Throttled):
        error.retry_after_s = int(retry_after_s(answer) or error.retry_after_s)
    return error


def problem_error(problem: Problem) -> HeadraceError:
    """The error that a problem tells."""
    message = problem.detail or problem.title or problem.type
    error = _typed(problem.code, RequestError, message, problem.remedy, problem.status)
    if isinstance(error, JobError):
        error.job_id = problem.job
    if problem.retryable is not None:
        error.retryable = problem.retryable
    return error


def job_error(job: Job) -> JobError:
    """How a job ended that did not succeed."""
    failure = job.error or _WITHOUT_SUCCESS.get(job.status) or Failure(message="the job failed")
    error = failure_error(failure)
    if not isinstance(error, JobError):
        # Such as a stock client's message for a model that is not registered.
        error = _relabelled(error, JobError)
    error.job_id = job.id
    return error


def failure_error(failure: Failure) -> HeadraceError:
    """The error that `error` of a job, or of a line of a bulk answer, tells."""
    error = _typed(failure.type, JobError, failure.message, "", 0)
    error.retryable = failure.retryable
    return error


def retry_after_s(answer: HttpResponse) -> float | None:
    """The seconds of Retry-After; None where there is none that can be read."""
    try:
        seconds = float(answer.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < 86_400 else None


def decoded(answer: HttpResponse, shape: type[T]) -> T:
    """The JSON of an answer.

    Raises:
        UnexpectedAnswer: it does not have that shape.
    """
    try:
        return msgspec.json.decode(answer.body, type=shape)
    except msgspec.DecodeError as error:
        raise UnexpectedAnswer(
            f"the server's answer cannot be read: {error}",
            hint="Is the address that of Headrace's API, and is the client not older than it?",
        ) from None


def _typed(
    code: str, fallback: type[HeadraceError], message: str, hint: str, status: int
) -> HeadraceError:
    known = BY_CODE.get(code)
    if known is not None and not issubclass(known, ClientError):
        return known(message, hint=hint)
    error = fallback(message, hint=hint)
    error.code = code or fallback.code
    error.status = status or fallback.status
    return error


def _relabelled(error: HeadraceError, cls: type[E]) -> E:
    other = cls(error.message, hint=error.hint)
    attributes: dict[str, Any] = {
        name: getattr(error, name) for name in ("code", "status", "retryable")
    }
    for name, value in attributes.items():
        setattr(other, name, value)
    return other
