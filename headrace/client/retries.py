"""One request with its retries, written as a plan.

A request is repeated where a repeat can help and does no harm: jobs are submitted under ids of the
client's own, so that a submit whose answer was lost may be said again.

A server that is gone may refuse, or take the connection and never answer: a supervisor keeps the
socket while it starts the next API process. A repeat would then hang for the whole time that the
request may take. So whoever got no answer first asks what any living server answers at once
(`/live`), with a short time limit, until it is answered; only then the request is sent again, with
all the time that it may take. So a server that is slow, or waits on purpose, is not given up.
`retry_s` counts from the first failure: how long the request had been under way by then does not
matter.
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

#: The ceiling of the first pause, and of the longest, in seconds.
PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 5.0
#: A server that has never answered is not waited for longer: it was probably never started.
FIRST_CONTACT_S: Final = 1.0
#: What a living server answers at once, whatever it is busy with; and how long it may take to.
LIVE: Final = "/live"
LIVE_S: Final = 5.0
#: What a proxy answers while its server is away, or when it holds back, without a problem of ours.
AWAY: Final = frozenset({429, 502, 503, 504})
#: Problems that pass by themselves.
PASSING: Final = (BrokerFull, BrokerUnavailable, StoreFull, StoreUnavailable, Throttled)


@dataclass(slots=True)
class Session:
    """What a client knows of its server.

    Attributes:
        url: the server's address, for messages.
        retry_s: how long a request that fails is repeated.
        met: the server has answered before, or has taken a request and died of it.
    """

    url: str
    retry_s: float
    met: bool = False


class Backoff:
    """Pauses between retries: each about twice the last, and spread by chance."""

    def __init__(self) -> None:
        self._ceiling_s = PAUSE_S

    def next(self, least_s: float = 0) -> Pause:
        """The next one, of so many seconds at the least."""
        drawn_s = self._ceiling_s * random.uniform(0.5, 1)  # noqa: S311 - no secret
        self._ceiling_s = min(self._ceiling_s * 2, MAX_PAUSE_S)
        return Pause(max(least_s, drawn_s))


class RetryDeadline:
    """How long failures are borne: `retry_s` from the first of them, with pauses between.

    Args:
        session: the server.
        until: the time (`time.monotonic`) after which nothing is borne; None for no such time.
    """

    def __init__(self, session: Session, until: float | None = None) -> None:
        self._session = session
        self._until = until
        self._pauses = Backoff()
        self._failed: float | None = None

    def left_s(self) -> float:
        """Seconds that are left, from the first call of this or of `pause`."""
        now = time.monotonic()
        if self._failed is None:
            self._failed = now
        retry_s = self._session.retry_s
        deadline = self._failed + (retry_s if self._session.met else min(FIRST_CONTACT_S, retry_s))
        return (deadline if self._until is None else min(deadline, self._until)) - now

    def renew(self) -> None:
        """Something has moved elsewhere: the time counts anew, and pauses stay as long."""
        self._failed = None

    def pause(self, least_s: float = 0) -> Pause | None:
        """The pause after a failure, of so long at the least; None where no time is left for it."""
        pause = self._pauses.next(least_s)
        return pause if pause.seconds <= self.left_s() else None


def exchange(
    session: Session, request: HttpRequest, *, until: float | None = None
) -> Plan[HttpResponse]:
    """Send a request until it is answered; whatever is below 400 is given back.

    Args:
        session: the server.
        request: may be repeated without harm.
        until: the time (`time.monotonic`) after which nothing is repeated; None leaves it to
            `retry_s`.

    Raises:
        HeadraceError: the answer is that error.
        ServerUnreachable: there was no answer.
    """
    patience = RetryDeadline(session, until)
    while True:
        outcome: HttpResponse | ConnectionFailed = yield request
        if (yield from borne(session, patience, outcome)):
            assert isinstance(outcome, HttpResponse)  # noqa: S101 - what is broken is a failure
            return outcome


def borne(
    session: Session, patience: RetryDeadline, outcome: HttpResponse | ConnectionFailed
) -> Plan[bool]:
    """Whether an outcome is success; else it was borne, and the request may be sent again.

    Raises:
        HeadraceError: the answer is that error.
        ServerUnreachable: there was no answer.
    """
    failure = _judge(session, outcome)
    if failure is None:
        return True
    yield from _bear(patience, failure)
    if isinstance(outcome, ConnectionFailed):
        yield from _until_alive(session, patience)
    return False


def _until_alive(session: Session, patience: RetryDeadline) -> Plan[None]:
    """Ask whether a server is there until one answers.

    Raises:
        ServerUnreachable: none did in the time that is left.
        UnexpectedAnswer: a proxy answered in its place.
    """
    while True:
        within_s = min(LIVE_S, max(patience.left_s(), 0))
        outcome: HttpResponse | ConnectionFailed = yield HttpRequest("GET", LIVE, within_s=within_s)
        if isinstance(outcome, ConnectionFailed):
            # Who takes connections and says nothing may be anything: no server was met by that.
            failure = _Failure(unreachable(session, outcome))
        elif outcome.status in AWAY:
            failure = _Failure(error_of(outcome, problem_of(outcome)))
        else:
            return
        yield from _bear(patience, failure)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a request has not succeeded.

    Attributes:
        error: what is raised where it is not borne.
        passes: whether it can pass by itself.
        least_s: the least pause before the next try.
    """

    error: HeadraceError
    passes: bool = True
    least_s: float = 0


def _bear(patience: RetryDeadline, failure: _Failure) -> Plan[None]:
    """Let a pause pass, or raise what does not pass or may not be borne any longer."""
    pause = patience.pause(failure.least_s) if failure.passes else None
    if pause is None:
        raise failure.error
    yield pause


def _judge(session: Session, outcome: HttpResponse | ConnectionFailed) -> _Failure | None:
    """What is wrong with an outcome; None where it is success."""
    if isinstance(outcome, ConnectionFailed):
        # Who was connected has met a server, which may have taken what it did not answer.
        session.met = session.met or not outcome.refused
        return _Failure(unreachable(session, outcome))
    problem = problem_of(outcome)
    if problem is not None or outcome.status < 400:
        session.met = True
    if outcome.status < 400:
        return None
    error = error_of(outcome, problem)
    passes = isinstance(error, PASSING) or (problem is None and outcome.status in AWAY)
    return _Failure(error, passes, retry_after_s(outcome) or 0)


def unreachable(session: Session, broken: ConnectionFailed) -> ServerUnreachable:
    """The error where no answer came."""
    return ServerUnreachable(
        f"Headrace does not answer at {session.url}: {broken.why}",
        hint="Start it with `headrace up`, or name another address: HEADRACE_URL, or url=.",
    )
