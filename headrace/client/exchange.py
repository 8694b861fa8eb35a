"""One request with its retries, written as a plan.

A request is repeated where a repeat can help and does no harm: jobs are submitted under ids of the
client's own, so that a submit whose answer was lost may be said again.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Final

from headrace.client.problems import Problem, error_of, problem_of, retry_after_s
from headrace.client.steps import Answer, Broken, Pause, Plan, Request
from headrace.errors import HeadraceError, ServerUnreachable

#: The first pause, and the longest, in seconds. Each is drawn at random from its upper half.
PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 5.0
#: A server that has never answered is not waited for longer: it was probably never started.
FIRST_CONTACT_S: Final = 1.0
#: Statuses of a proxy whose server is away, where no problem of ours stands in the answer.
AWAY: Final = frozenset({502, 503, 504})
#: Problems that pass by themselves.
PASSING: Final = frozenset({"broker-unavailable", "broker-full", "queue-full"})


@dataclass(slots=True)
class Session:
    """What a client knows of its server.

    Attributes:
        url: the server's address, for messages.
        retry_s: how long a request that fails is repeated.
        met: the server has answered before.
    """

    url: str
    retry_s: float
    met: bool = False


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
    pause_s = PAUSE_S
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
        pause_s = min(pause_s * 2, MAX_PAUSE_S)
        this_s = max(least_s, pause_s * random.uniform(0.5, 1))  # noqa: S311 - spreads the retries
        if not passes or time.monotonic() + this_s > deadline:
            raise error
        yield Pause(this_s)


def _judge(session: Session, outcome: Answer | Broken) -> tuple[HeadraceError, bool, float] | None:
    """The error, whether it can pass, and after how many seconds at the least; None for success."""
    if isinstance(outcome, Broken):
        return unreachable(session, outcome), True, 0
    problem = problem_of(outcome)
    if problem is not None or outcome.status < 400:
        session.met = True
    if outcome.status < 400:
        return None
    passes = _passes(outcome, problem)
    return error_of(outcome, problem), passes, retry_after_s(outcome) or 0


def _passes(answer: Answer, problem: Problem | None) -> bool:
    if problem is None:
        return answer.status in AWAY or answer.status == 429
    return problem.code in PASSING


def unreachable(session: Session, broken: Broken) -> ServerUnreachable:
    """The error where no answer came."""
    return ServerUnreachable(
        f"Headrace does not answer at {session.url}: {broken.why}",
        hint="Start it with `headrace up`, or name another address: HEADRACE_URL, or url=.",
    )
