"""How long a request waits for a job, and the wait itself."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Final, Self

from api.http.messages import ClientGone, Receive, hung_up
from headrace.errors import BrokerError, InvalidRequest, JobNotFound
from headrace.jobs.job import Job
from headrace.queue.ended_job import EndedJob
from headrace.queue.waiters import JobWaiter, Waiters

#: A wait that lasts so long is worth a task that watches whether the client hangs up.
WATCH_AFTER_S: Final = 0.25
#: While Redis does not answer, the record is asked for again so often.
LOOK_AGAIN_S: Final = 1.0

_PREFER_WAIT = re.compile(rb'(?:^|[,;])\s*wait\s*=\s*"?(\d{1,9})"?\s*(?=$|[,;])', re.IGNORECASE)


@lru_cache(maxsize=256)
def preferred_wait_s(prefer: bytes, max_wait_s: float) -> float | None:
    """The wait of a Prefer header (RFC 7240), capped; None where there is none that can be read."""
    found = _PREFER_WAIT.search(prefer)
    return min(float(found.group(1)), max_wait_s) if found else None


def asked_wait_s(text: str | None, max_wait_s: float, name: str = "wait") -> float | None:
    """The seconds of `?wait=`, or of the parameter of that name, capped; None where it is absent.

    Raises:
        InvalidRequest: it is no number of seconds.
    """
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InvalidRequest(
            f"query parameter {name}: {text[:32]!r} is no number of seconds",
            hint=f"Give 0 to {max_wait_s:g}.",
        )
    return min(seconds, max_wait_s)


class PendingWait:
    """Wakes a wait when its time is up or its client hangs up.

    Attributes:
        began: when, by the loop's clock.
        late: the time is up.
        gone: the client hung up.
    """

    __slots__ = ("_receive", "_seconds", "_timer", "_vigils", "_wait", "_watcher", "began", "gone",
                 "late")  # fmt: skip

    def __init__(
        self, vigils: PendingWaits, wait: JobWaiter, seconds: float, receive: Receive
    ) -> None:
        self.late = False
        self.gone = False
        self.began = vigils.loop.time()
        self._vigils = vigils
        self._wait = wait
        self._seconds = seconds
        self._receive = receive
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        if self._seconds > WATCH_AFTER_S:
            self._vigils.add(self)
        else:
            self._timer = self._vigils.loop.call_later(self._seconds, self._expire)
        return self

    def __exit__(self, *_: object) -> None:
        self._vigils.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def watch(self) -> None:
        """Look out for the client, too, and for the end of the time."""
        loop = self._vigils.loop
        self._timer = loop.call_at(self.began + self._seconds, self._expire)
        self._watcher = loop.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        await hung_up(self._receive)
        self.gone = True
        self._wait.wake()

    def _expire(self) -> None:
        self.late = True
        self._wait.wake()


class PendingWaits:
    """The vigils of one process.

    Most waits end before WATCH_AFTER_S. Up to then one timer does for all of them, and none costs a
    task.
    """

    def __init__(self) -> None:
        # In the order in which they have begun, which is that in which they are due.
        self._young: dict[PendingWait, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this process; to ask for it is a system call each time, on Python 3.11."""
        return asyncio.get_running_loop()

    def over(self, wait: JobWaiter, seconds: float, receive: Receive) -> PendingWait:
        """A vigil over a wait; it lasts while it is entered."""
        return PendingWait(self, wait, seconds, receive)

    def add(self, vigil: PendingWait) -> None:
        """One has begun."""
        self._young[vigil] = None
        if self._timer is None:
            self._timer = self.loop.call_later(WATCH_AFTER_S, self._look)

    def discard(self, vigil: PendingWait) -> None:
        """One has ended."""
        self._young.pop(vigil, None)

    def _look(self) -> None:
        self._timer = None
        # The loop's timers count in whole milliseconds.
        due = self.loop.time() - WATCH_AFTER_S + 0.001
        ripe = list(takewhile(lambda vigil: vigil.began <= due, self._young))
        for vigil in ripe:
            del self._young[vigil]
            vigil.watch()
        for vigil in self._young:
            self._timer = self.loop.call_at(vigil.began + WATCH_AFTER_S, self._look)
            break


async def until_ended(
    wait: JobWaiter,
    vigil: PendingWait,
    waiters: Waiters,
    read: Callable[[str], Awaitable[Job | None]],
) -> EndedJob | Job:
    """Wait for a job's end; what its record says once the time is up.

    Raises:
        ClientGone: nobody waits any more.
        JobNotFound: the record is gone, with a server that lost its data or after a short TTL.
        BrokerError: Redis does not answer, and the time is up.
    """
    while True:
        ended = await wait.woken()
        if ended is not None:
            return ended
        if vigil.gone:
            raise ClientGone
        last = vigil.late or waiters.closing
        try:
            job = await read(wait.job_id)
        except BrokerError:
            if last:
                raise
            asyncio.get_running_loop().call_later(LOOK_AGAIN_S, wait.wake)
            continue
        if job is None:
            raise JobNotFound(
                f"the record of job {wait.job_id} is gone",
                hint="Its result_ttl has passed, or Redis lost its data; submit it again.",
            )
        if last or job.state.final:
            return job
