"""One request with its retries, as a plan.

A request is repeated if a repeat can help and does no harm. Jobs are submitted under ids that the
client chooses, so a submit whose answer was lost can be repeated.

A stopped server may refuse the connection, or accept it and never answer: a supervisor keeps the
socket open while it starts the next API process. A repeated request would then hang for its whole
timeout. So after a connection failure the client first polls `/live` with a short timeout, and
repeats the request with its full timeout only after an answer. A server that is slow, or waits on
purpose, is therefore not given up. `retry_s` counts from the first failure; the time that the
request took before does not count.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Final

from headrace.client.errors import error_of, problem_of, retry_after_s
from headrace.client.sansio import ConnectionFailed, HttpRequest, HttpResponse, Pause, Plan
from headrace.errors import (
    BrokerFull,
    BrokerUnavailable,
    HeadraceError,
    ServerUnreachable,
    StoreFull,
    StoreUnavailable,
    Throttled,
)

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
        url: the server's address, for messages.
        retry_s: how long a failed request is repeated.
        reached: the server has answered before, or accepted a connection.
    """

    url: str
    retry_s: float
    reached: bool = False


class RetryPauses:
    """Pauses between retries: each about twice as long as the last, with random jitter."""

    def __init__(self) -> None:
        self._ceiling_s = PAUSE_S

    def next(self, least_s: float = 0) -> Pause:
        """Return the next pause, of at least `least_s` seconds."""
        drawn_s = self._ceiling_s * random.uniform(0.5, 1)  # noqa: S311 - no secret
        self._ceiling_s = min(self._ceiling_s * 2, MAX_PAUSE_S)
        return Pause(max(least_s, drawn_s))


class RetryDeadline:
    """Limits retries to `retry_s` seconds from the first failure, with pauses between them.

    Args:
        session: the server.
        until: the time (`time.monotonic`) after which nothing is retried; None for no such time.
    """

    def __init__(self, session: Session, until: float | None = None) -> None:
        self._session = session
        self._until = until
        self._pauses = RetryPauses()
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
        pause = self._pauses.next(least_s)
        return pause if pause.seconds <= self.left_s() else None


def exchange(
    session: Session, request: HttpRequest, *, until: float | None = None
) -> Plan[HttpResponse]:
    """Send a request, with retries, and return an answer with a status below 400.

    Args:
        session: the server.
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


def succeeded(
    session: Session, deadline: RetryDeadline, outcome: HttpResponse | ConnectionFailed
) -> Plan[bool]:
    """Return True for a success; after a transient failure pause and return False.

    Raises:
        HeadraceError: the answer is that error, and it is not transient or no time is left.
        ServerUnreachable: there was no answer.
    """
    failure = _failure_of(session, outcome)
    if failure is None:
        return True
    yield from _pause_or_raise(deadline, failure)
    if isinstance(outcome, ConnectionFailed):
        yield from _wait_until_alive(session, deadline)
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
            failure = _Failure(unreachable(session, outcome))
        elif outcome.status in PROXY_RETRY_STATUSES:
            failure = _Failure(error_of(outcome, problem_of(outcome)))
        else:
            return
        yield from _pause_or_raise(deadline, failure)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a request failed.

    Attributes:
        error: the error to raise if the request is not retried.
        transient: whether a retry can succeed.
        least_s: minimum pause before the retry.
    """

    error: HeadraceError
    transient: bool = True
    least_s: float = 0


def _pause_or_raise(deadline: RetryDeadline, failure: _Failure) -> Plan[None]:
    """Pause before a retry, or raise the error if it is not transient or no time is left."""
    pause = deadline.pause(failure.least_s) if failure.transient else None
    if pause is None:
        raise failure.error
    yield pause


def _failure_of(session: Session, outcome: HttpResponse | ConnectionFailed) -> _Failure | None:
    """Return the failure that an outcome is; None for a success."""
    if isinstance(outcome, ConnectionFailed):
        # A server that accepted the connection may have processed the request.
        session.reached = session.reached or not outcome.refused
        return _Failure(unreachable(session, outcome))
    problem = problem_of(outcome)
    if problem is not None or outcome.status < 400:
        session.reached = True
    if outcome.status < 400:
        return None
    error = error_of(outcome, problem)
    from_proxy = problem is None and outcome.status in PROXY_RETRY_STATUSES
    return _Failure(error, isinstance(error, TRANSIENT) or from_proxy, retry_after_s(outcome) or 0)


def unreachable(session: Session, failed: ConnectionFailed) -> ServerUnreachable:
    """Return the error for a request without an answer."""
    return ServerUnreachable(
        f"Headrace does not answer at {session.url}: {failed.why}",
        hint="Start it with `headrace up`, or set another address with HEADRACE_URL or url=.",
    )
