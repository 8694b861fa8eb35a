"""One request with its retries, written as a plan.

A request is repeated where a repeat can help and does no harm: jobs are submitted under ids of the
client's own, so that a submit whose answer was lost may be said again.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Final

from headrace.client.problems import error_of, problem_of, retry_after_s
from headrace.client.steps import Answer, Broken, Pause, Plan, Request
from headrace.errors import (
    BrokerFull,
    BrokerUnavailable,
    HeadraceError,
    QueueFull,
    ServerUnreachable,
    StoreFull,
    StoreUnavailable,
)

#: The ceiling of the first pause, and of the longest, in seconds.
PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 5.0
#: A server that has never answered is not waited for longer: it was probably never started.
FIRST_CONTACT_S: Final = 1.0
#: What a proxy answers while its server is away, or when it holds back, without a problem of ours.
AWAY: Final = frozenset({429, 502, 503, 504})
#: Problems that pass by themselves.
PASSING: Final = (BrokerFull, BrokerUnavailable, QueueFull, StoreFull, StoreUnavailable)


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


class Pauses:
    """Pauses between retries: each about twice the last, and spread by chance."""

    def __init__(self) -> None:
        self._ceiling_s = PAUSE_S

    def next(self, least_s: float = 0) -> Pause:
        """The next one, of so many seconds at the least."""
        drawn_s = self._ceiling_s * random.uniform(0.5, 1)  # noqa: S311 - no secret
        self._ceiling_s = min(self._ceiling_s * 2, MAX_PAUSE_S)
        return Pause(max(least_s, drawn_s))


def exchange(session: Session, request: Request, *, until: float | None = None) -> Plan[Answer]:
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
    started = time.monotonic()
    pauses = Pauses()
    while True:
        outcome: Answer | Broken = yield request
        failure = _judge(session, outcome)
        if failure is None:
            assert isinstance(outcome, Answer)  # noqa: S101 - what is broken is a failure
            return outcome
        error, passes, least_s = failure
        bearable_s = session.retry_s if session.met else min(FIRST_CONTACT_S, session.retry_s)
        deadline = started + bearable_s
        if until is not None:
            deadline = min(deadline, until)
        pause = pauses.next(least_s)
        if not passes or time.monotonic() + pause.seconds > deadline:
            raise error
        yield pause


def _judge(session: Session, outcome: Answer | Broken) -> tuple[HeadraceError, bool, float] | None:
    """The error, whether it can pass, and after how many seconds at the least; None for success."""
    if isinstance(outcome, Broken):
        # Who was connected has met a server, which may have taken what it did not answer.
        session.met = session.met or not outcome.refused
        return unreachable(session, outcome), True, 0
    problem = problem_of(outcome)
    if problem is not None or outcome.status < 400:
        session.met = True
    if outcome.status < 400:
        return None
    error = error_of(outcome, problem)
    passes = isinstance(error, PASSING) or (problem is None and outcome.status in AWAY)
    return error, passes, retry_after_s(outcome) or 0


def unreachable(session: Session, broken: Broken) -> ServerUnreachable:
    """The error where no answer came."""
    return ServerUnreachable(
        f"Headrace does not answer at {session.url}: {broken.why}",
        hint="Start it with `headrace up`, or name another address: HEADRACE_URL, or url=.",
    )
