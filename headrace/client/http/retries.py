"""One request with its retries, as a plan.

A request is repeated if a repeat can help and does no harm. Jobs are submitted under ids that the
client chooses, so a submit whose answer was lost can be repeated.

A stopped server may refuse the connection. Or it accepts it and never answers, because a supervisor
keeps the socket open while it starts the next API process. A repeated request would then hang for
its whole timeout. So after a connection failure the client first polls `/live` with a short
timeout. Only after an answer does it repeat the request with its full timeout. A server that is
slow, or waits on purpose, is therefore not given up. `retry_s` counts from the first failure; the
time that the request took before does not count.

A limit (429) is no outage. Work that has no hurry waits for it, however long it takes: runs, `map`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from headrace.client.models import Job
from headrace.client.sansio import ConnectionFailed, HttpRequest, HttpResponse, Pause, Plan
from headrace.errors import (
    BY_CODE,
    BrokerFull,
    BrokerUnavailable,
    ClientError,
    FieldError,
    HeadraceError,
    InvalidInput,
    JobError,
    RequestError,
    ServerUnreachable,
    StoreFull,
    StoreUnavailable,
    Throttled,
    UnexpectedAnswer,
)
from headrace.jobs.job import WITHOUT_ERROR, JobFailure

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
    error = _typed(failure.type, JobError, failure.message, "", 0)
    error.retryable = failure.retryable
    if not isinstance(error, JobError):
        # For example a stock client's job for a model that is not registered.
        other, error = error, JobError(error.message, hint=error.hint)
        error.code, error.status, error.retryable = other.code, other.status, other.retryable
    error.job_id = job.id
    error.traceback = job.traceback
    return error


def retry_after_s(answer: HttpResponse) -> float | None:
    """Return the seconds of Retry-After; None without a valid value."""
    try:
        seconds = float(answer.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < 86_400 else None


def decoded(answer: HttpResponse, shape: type[T]) -> T:
    """Decode the JSON of an answer; raise UnexpectedAnswer if it does not have this shape."""
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


#: Maximum seconds of the first pause, and of any pause.
PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 5.0
#: Maximum seconds of retries to a server that never answered: it was probably never started.
FIRST_CONTACT_S: Final = 1.0
#: A path that a running server answers at once, and the timeout for it.
LIVE: Final = "/live"
LIVE_S: Final = 5.0
#: Statuses of a proxy whose server is unavailable, or that limits requests, without a problem body.
PROXY_RETRY_STATUSES: Final = frozenset({429, 502, 503, 504})
#: Problems that pass without a change of the request.
TRANSIENT: Final = (BrokerFull, BrokerUnavailable, StoreFull, StoreUnavailable, Throttled)


@dataclass(slots=True)
class Session:
    """The state that a client keeps about its server.

    Attributes:
        retry_s: how long a failed request is repeated.
        proxy: the proxy of the environment, for messages; "" without one.
        reached: the server has answered before, or accepted a connection.
        on_limit: is called before each wait for a limit (429).
        on_waiting: is called with the reason for which no worker can load the model of a job.
    """

    url: str
    retry_s: float
    proxy: str = ""
    reached: bool = False
    on_limit: Callable[[Pause], None] = lambda _: None
    on_waiting: Callable[[str], None] = lambda _: None


class RetryDeadline:
    """Limits retries to `retry_s` seconds from the first failure, with pauses between them.

    Each pause is about twice as long as the last one, with random jitter.

    Args:
        until: the time (`time.monotonic`) after which nothing is retried; None for no such time.
    """

    def __init__(self, session: Session, until: float | None = None) -> None:
        self._session = session
        self._until = until
        self._next_pause_s = PAUSE_S
        self._first_failure: float | None = None

    def left_s(self) -> float:
        """Return the seconds that are left, counted from the first call of this or of `pause`."""
        now = time.monotonic()
        if self._first_failure is None:
            self._first_failure = now
        retry_s = self._session.retry_s
        if not self._session.reached:
            retry_s = min(FIRST_CONTACT_S, retry_s)
        deadline = self._first_failure + retry_s
        return (deadline if self._until is None else min(deadline, self._until)) - now

    def renew(self) -> None:
        """Restart the time after progress elsewhere; the pauses keep their length."""
        self._first_failure = None

    def pause(self, least_s: float = 0) -> Pause | None:
        """Return the next pause, of at least `least_s` seconds; None if no time is left for it."""
        pause_s = max(least_s, self._drawn_s())
        return Pause(pause_s) if pause_s <= self.left_s() else None

    def limit_pause(self, least_s: float, limit: str) -> Pause:
        """Return the next pause for a limit (its code); the server answers, so no time counts."""
        self._first_failure = None
        return Pause(max(least_s, self._drawn_s()), limit)

    def _drawn_s(self) -> float:
        drawn_s = self._next_pause_s * random.uniform(0.5, 1)  # noqa: S311 - no secret
        self._next_pause_s = min(self._next_pause_s * 2, MAX_PAUSE_S)
        return drawn_s


def limit_of(errors: Sequence[object]) -> Throttled | None:
    """Return the limit that ends first, if each of these was refused by a limit (429)."""
    limits = [error for error in errors if isinstance(error, Throttled)]
    if not limits or len(limits) < len(errors):
        return None
    return min(limits, key=lambda limit: limit.retry_after_s)


def known_wait_s(limit: Throttled) -> int:
    """Return how long a limit asks to wait; 0 if it does not know, and names the least time."""
    return limit.retry_after_s if limit.retry_after_s > 1 else 0


def outlasting_limits(session: Session, plan: Plan[T]) -> Plan[T]:
    """Perform a plan, and repeat each request that a limit refuses (429) until it is accepted."""
    outcome: Any = None
    while True:
        try:
            step = plan.send(outcome)
        except StopIteration as ended:
            found: T = ended.value
            return found
        outcome = yield step
        deadline = RetryDeadline(session)
        while isinstance(step, HttpRequest) and _is_limit(outcome):
            code = error_of(outcome, problem_of(outcome)).code
            yield deadline.limit_pause(retry_after_s(outcome) or 0, code)
            outcome = yield step


def _is_limit(outcome: object) -> bool:
    return isinstance(outcome, HttpResponse) and outcome.status == Throttled.status


def exchange(
    session: Session, request: HttpRequest, *, until: float | None = None
) -> Plan[HttpResponse]:
    """Send a request, with retries, and return an answer with a status below 400.

    Args:
        request: a request that may be repeated without harm.
        until: the time (`time.monotonic`) after which nothing is repeated; None for `retry_s`.

    Raises:
        HeadraceError: the answer is that error.
        ServerUnreachable: there was no answer.
    """
    deadline = RetryDeadline(session, until)
    while True:
        outcome: HttpResponse | ConnectionFailed = yield request
        if (yield from succeeded(session, deadline, outcome)):
            assert isinstance(outcome, HttpResponse)  # noqa: S101 - a failed connection is no success
            return outcome


def fetch(session: Session, request: HttpRequest, shape: type[T]) -> Plan[T]:
    """Send a request with retries as `exchange` does, and return the decoded answer."""
    return decoded((yield from exchange(session, request)), shape)


def succeeded(
    session: Session, deadline: RetryDeadline, outcome: HttpResponse | ConnectionFailed
) -> Plan[bool]:
    """Return True for a success; after a transient failure pause and return False.

    Raises:
        HeadraceError: the answer is that error, and it is not transient or no time is left.
        ServerUnreachable: there was no answer.
    """
    if isinstance(outcome, ConnectionFailed):
        # A server that accepted the connection may have processed the request.
        session.reached = session.reached or not outcome.refused
        yield from _pause_or_raise(deadline, unreachable(session, outcome))
        yield from _wait_until_alive(session, deadline)
        return False
    problem = problem_of(outcome)
    if problem is not None or outcome.status < 400:
        session.reached = True
    if outcome.status < 400:
        return True
    error = error_of(outcome, problem)
    if problem is None and session.proxy:
        error.hint = f"The answer may be that of the proxy {session.proxy}; {_AROUND}"
    from_proxy = problem is None and outcome.status in PROXY_RETRY_STATUSES
    if not (isinstance(error, TRANSIENT) or from_proxy):
        raise error
    yield from _pause_or_raise(deadline, error, retry_after_s(outcome) or 0)
    return False


def _wait_until_alive(session: Session, deadline: RetryDeadline) -> Plan[None]:
    """Poll `/live` until a server answers.

    Raises:
        ServerUnreachable: no server answered in the time that was left.
        UnexpectedAnswer: a proxy answered instead.
    """
    while True:
        within_s = min(LIVE_S, max(deadline.left_s(), 0))
        outcome: HttpResponse | ConnectionFailed = yield HttpRequest("GET", LIVE, within_s=within_s)
        if isinstance(outcome, ConnectionFailed):
            # Any program may accept a connection without an answer: `reached` stays as it is.
            error: HeadraceError = unreachable(session, outcome)
        elif outcome.status in PROXY_RETRY_STATUSES:
            error = error_of(outcome, problem_of(outcome))
        else:
            return
        yield from _pause_or_raise(deadline, error)


#: Why a TLS connection fails, and what to do; the server itself may well be up.
_TLS_HINTS: Final = {
    "CERTIFICATE_VERIFY_FAILED": "Set the file of the CA of its certificate with HEADRACE_CA_FILE.",
    "WRONG_VERSION_NUMBER": "That port has no TLS: set an http:// address with HEADRACE_URL.",
}


def _pause_or_raise(
    deadline: RetryDeadline, error: HeadraceError, least_s: float = 0
) -> Plan[None]:
    """Pause before a retry, for at least `least_s` seconds; raise the error if no time is left."""
    pause = deadline.pause(least_s)
    if pause is None:
        raise error
    yield pause


#: What to do if the server needs no proxy.
_AROUND: Final = "add the server's host to NO_PROXY if it needs none."


def unreachable(session: Session, failed: ConnectionFailed) -> ServerUnreachable:
    """Return the error for a request without an answer."""
    hint = "Start it with `headrace up`, or set another address with HEADRACE_URL or url=."
    for reason, remedy in _TLS_HINTS.items():
        if reason in failed.why:
            hint = remedy
    through = ""
    if session.proxy:
        through, hint = f" through the proxy {session.proxy}", f"Check the proxy; {_AROUND}"
    return ServerUnreachable(
        f"Headrace does not answer at {session.url}{through}: {failed.why}", hint=hint
    )
