"""Parse how long a request waits for a job, and wait."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from functools import cached_property
from itertools import takewhile
from typing import Annotated, Final, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.messages import ClientGone, HangUp, Receive
from headrace.errors import BrokerError, InvalidRequest, JobNotFound
from headrace.jobs.job import Amount, Job
from headrace.queue.following.waiters import EndedJob, JobWaiter, Waiters

#: Seconds after which a wait gets a task that notices when the client hangs up.
WATCH_AFTER_S: Final = 0.25
#: Seconds between two reads of the record while Redis does not answer.
LOOK_AGAIN_S: Final = 1.0

_PREFER_ASYNC: Final = re.compile(rb"(?:^|[,;])\s*respond-async\s*(?=$|[,;])", re.IGNORECASE)
#: The answer to a client that prefers not to wait.
ASYNC_APPLIED: Final = (b"preference-applied", b"respond-async")
_PREFER_WAIT = re.compile(rb'(?:^|[,;])\s*wait\s*=\s*"?(\d{1,9})"?\s*(?=$|[,;])', re.IGNORECASE)


class WaitQuery(msgspec.Struct):
    """The query of an operation that can wait; `query_wait_s` reads it."""

    wait: Annotated[
        Amount | UnsetType,
        Meta(
            description="Seconds to wait for the job's end, capped at `max_wait_s`.", examples=[10]
        ),
    ] = UNSET


def preferred_wait_s(prefer: bytes, max_wait_s: float) -> float | None:
    """Return the wait of a Prefer header (RFC 7240), capped; None without a valid wait."""
    match = _PREFER_WAIT.search(prefer)
    return min(float(match.group(1)), max_wait_s) if match else None


def prefers_async(prefer: bytes) -> bool:
    """Return whether a Prefer header asks for an answer before the job has ended."""
    return bool(prefer) and _PREFER_ASYNC.search(prefer) is not None


def query_wait_s(text: str | None, max_wait_s: float) -> float | None:
    """Return the seconds of `?wait=`, capped, or None; raise InvalidRequest for another text."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InvalidRequest(
            f"query parameter wait: {text[:32]!r} is not a number of seconds",
            hint=f"Give 0 to {max_wait_s:g}.",
        )
    return min(seconds, max_wait_s)


class PendingWait:
    """Wakes a wait, while it is entered, when its time is up (`late`) or its client hangs up.

    Without `receive` the caller notices the hang-up of the client.
    """

    __slots__ = (
        "_hang_up", "_pending_waits", "_receive", "_seconds", "_timer", "_wait", "began", "late",
    )  # fmt: skip

    def __init__(
        self, pending_waits: PendingWaits, wait: JobWaiter, seconds: float, receive: Receive | None
    ) -> None:
        self.late = False
        self.began = pending_waits.loop.time()
        self._pending_waits = pending_waits
        self._wait = wait
        self._seconds = seconds
        self._receive = receive
        self._timer: asyncio.TimerHandle | None = None
        self._hang_up: HangUp | None = None

    def __enter__(self) -> Self:
        if self._seconds > WATCH_AFTER_S:
            self._pending_waits.add(self)
        else:
            self._timer = self._pending_waits.loop.call_later(self._seconds, self._expire)
        return self

    def __exit__(self, *_: object) -> None:
        self._pending_waits.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._hang_up is not None:
            self._hang_up.__exit__()

    @property
    def gone(self) -> bool:
        """Whether the client hung up."""
        return self._hang_up is not None and self._hang_up.gone

    def watch(self) -> None:
        """Notice the end of the time, and when the client hangs up."""
        loop = self._pending_waits.loop
        if self._seconds < math.inf:
            self._timer = loop.call_at(self.began + self._seconds, self._expire)
        if self._receive is not None:
            self._hang_up = HangUp(self._receive, self._wait.wake).__enter__()

    def _expire(self) -> None:
        self.late = True
        self._wait.wake()


class PendingWaits:
    """The pending waits of a process.

    Most waits end before WATCH_AFTER_S. Until then one timer serves all of them, and none costs a
    task.
    """

    def __init__(self) -> None:
        # In the order in which they began, which is also the order in which they are due.
        self._recent: dict[PendingWait, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this process; on Python 3.11 getting it is a system call each time."""
        return asyncio.get_running_loop()

    def add(self, pending: PendingWait) -> None:
        """Add a wait that has begun."""
        self._recent[pending] = None
        if self._timer is None:
            self._timer = self.loop.call_later(WATCH_AFTER_S, self._watch_old)

    def discard(self, pending: PendingWait) -> None:
        """Remove a wait that has ended."""
        self._recent.pop(pending, None)

    def _watch_old(self) -> None:
        self._timer = None
        # The loop's timers have a resolution of a millisecond.
        due = self.loop.time() - WATCH_AFTER_S + 0.001
        old = list(takewhile(lambda pending: pending.began <= due, self._recent))
        for pending in old:
            del self._recent[pending]
            pending.watch()
        for pending in self._recent:
            self._timer = self.loop.call_at(pending.began + WATCH_AFTER_S, self._watch_old)
            break


async def until_ended(
    wait: JobWaiter,
    pending: PendingWait,
    waiters: Waiters,
    read: Callable[[str], Awaitable[Job | None]],
    created_us: int,
) -> EndedJob | Job:
    """Wait for a job's end, or return its record once the time is up.

    Raises:
        ClientGone: the client hung up.
        JobNotFound: the record is gone: its TTL has passed, or Redis lost its data. A later job may
            have the id.
        BrokerError: Redis does not answer, and the time is up.
    """
    while True:
        ended = await wait.woken()
        if ended is not None:
            return ended
        if pending.gone:
            raise ClientGone
        last = pending.late or waiters.closing
        try:
            job = await read(wait.job_id)
        except BrokerError:
            if last:
                raise
            asyncio.get_running_loop().call_later(LOOK_AGAIN_S, wait.wake)
            continue
        if job is None or job.created_us != created_us:
            raise JobNotFound(
                f"the record of job {wait.job_id} is gone",
                hint="Its result_ttl has passed, or Redis lost its data; submit it again.",
            )
        if last or job.state.final:
            return job
