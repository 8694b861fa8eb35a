"""Turns error answers and failed jobs into exceptions of headrace.errors."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from headrace.client.models import Job
from headrace.client.sansio import HttpResponse
from headrace.errors import (
    BY_CODE,
    ClientError,
    FieldError,
    HeadraceError,
    InvalidInput,
    JobError,
    RequestError,
    Throttled,
    UnexpectedAnswer,
)
from headrace.jobs.failure import WITHOUT_ERROR, JobFailure

PROBLEM_TYPE: Final = "application/problem+json"
SHOWN_MAX_CHARS: Final = 200

T = TypeVar("T")


class Problem(msgspec.Struct):
    """The fields of RFC 9457 that the client uses."""

    type: str = ""
    title: str = ""
    status: int = 0
    detail: str = ""
    remedy: str = ""
    retryable: bool | None = None
    job: str = ""
    traceback: str = ""
    errors: list[FieldError] = []
    retry_after: int = 1

    @property
    def code(self) -> str:
        """Return the last part of the type."""
        return self.type.rpartition("/")[2]


def problem_of(answer: HttpResponse) -> Problem | None:
    """Return the problem in an answer; None if it has no problem body."""
    if answer.headers.get("content-type", "").partition(";")[0].strip() != PROBLEM_TYPE:
        return None
    try:
        return msgspec.json.decode(answer.body, type=Problem)
    except msgspec.DecodeError:
        return None


def error_of(answer: HttpResponse, problem: Problem | None) -> HeadraceError:
    """Return the error for an answer."""
    if problem is None:
        shown = answer.body[:SHOWN_MAX_CHARS].decode("utf-8", "replace").strip()
        return UnexpectedAnswer(
            f"the server answered {answer.status} with an unknown body: {shown!r}",
            hint="Check that the address is Headrace's API, and check any proxy in front of it.",
        )
    error = problem_error(problem)
    if isinstance(error, Throttled):
        error.retry_after_s = int(retry_after_s(answer) or error.retry_after_s)
    return error


def problem_error(problem: Problem) -> HeadraceError:
    """Return the error for a problem."""
    message = problem.detail or problem.title or problem.type
    error = _typed(problem.code, RequestError, message, problem.remedy, problem.status)
    if isinstance(error, JobError):
        error.job_id = problem.job
        error.traceback = problem.traceback
    if isinstance(error, InvalidInput):
        error.errors = problem.errors
    if isinstance(error, Throttled):
        error.retry_after_s = problem.retry_after
    if problem.retryable is not None:
        error.retryable = problem.retryable
    return error


def job_error(job: Job) -> JobError:
    """Return the error for a job that failed."""
    failure = job.error or WITHOUT_ERROR.get(job.status) or JobFailure(message="the job failed")
    error = failure_error(failure)
    if not isinstance(error, JobError):
        # For example a stock client's job for a model that is not registered.
        other, error = error, JobError(error.message, hint=error.hint)
        error.code, error.status, error.retryable = other.code, other.status, other.retryable
    error.job_id = job.id
    error.traceback = job.traceback
    return error


def failure_error(failure: JobFailure) -> HeadraceError:
    """Return the error for the `error` of a job or of a line of a bulk answer."""
    error = _typed(failure.type, JobError, failure.message, "", 0)
    error.retryable = failure.retryable
    return error


def retry_after_s(answer: HttpResponse) -> float | None:
    """Return the seconds of Retry-After; None without a valid value."""
    try:
        seconds = float(answer.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < 86_400 else None


def decoded(answer: HttpResponse, shape: type[T]) -> T:
    """Decode the JSON of an answer.

    Raises:
        UnexpectedAnswer: the JSON does not have this shape.
    """
    try:
        return msgspec.json.decode(answer.body, type=shape)
    except msgspec.DecodeError as error:
        raise UnexpectedAnswer(
            f"the server's answer cannot be read: {error}",
            hint="Check that the address is Headrace's API, and that the client is not older.",
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
