"""Waiting for jobs to end without polling: one subscription per API process.

Each process has a channel of its own. It receives the ends of the jobs that it submitted with a
wait, a batch at a time, with everything that the answer needs. For any other job it subscribes to
two channels: that of the Celery result, on which the end is published, and `hr:ended:<id>`, on
which short results follow. Without the latter the waiter reads the record. A publication can be
lost with its connection, so after a reconnect every waiter reads its record again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection
from functools import cached_property
from typing import Final, Self

import msgspec
import redis.asyncio

from headrace.queue.ended_job import EndedJob, read_ended
from headrace.queue.subscription import Subscription
from headrace.redis import keys

logger = logging.getLogger(__name__)

#: How long a wait for any job waits for its subscription; then it reads the record.
SUBSCRIBE_MAX_S: Final = 1.0


class JobWaiter:
    """One request that waits for one job. Inside its context its `Waiters` can wake it."""

    __slots__ = ("_ended", "_future", "_loop", "_table", "_woken", "job_id")

    def __init__(
        self,
        job_id: str,
        loop: asyncio.AbstractEventLoop,
        table: dict[str, list[JobWaiter]] | None = None,
    ) -> None:
        self.job_id = job_id
        self._table = table
        self._loop = loop
        self._woken = False
        self._future: asyncio.Future[None] | None = None
        self._ended: EndedJob | None = None

    def __enter__(self) -> Self:
        if self._table is not None:
            # Several requests may wait for the same id.
            self._table.setdefault(self.job_id, []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._table is not None:
            waiters = self._table[self.job_id]
            waiters.remove(self)
            if not waiters:
                del self._table[self.job_id]

    def wake(self, ended: EndedJob | None = None) -> None:
        """Wake the request, with how the job ended, or None to make it read the record."""
        if ended is not None:
            self._ended = ended
        self._woken = True
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    async def woken(self) -> EndedJob | None:
        """Wait for the next `wake`; return how the job ended, if that is known."""
        if not self._woken:
            self._future = self._loop.create_future()
            await self._future
            self._future = None
        self._woken = False
        return self._ended


def _channels(job_id: str) -> tuple[str, str]:
    """Return the channels of a job; once the last is confirmed, so is the first."""
    return keys.ended(job_id), keys.meta(job_id)


class Waiters:
    """The waiters of one API process.

    Args:
        client: the subscription uses its pool.
        api_id: the id of this process; jobs carry it in their records.

    Attributes:
        dismissed: set once this process stops.
    """

    def __init__(self, client: redis.asyncio.Redis, api_id: str) -> None:
        self.api_id = api_id
        self.dismissed = asyncio.Event()
        self._own: dict[str, list[JobWaiter]] = {}
        self._others: dict[str, set[JobWaiter]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._subscription = Subscription(
            client,
            "waiting",
            [keys.done_channel(api_id)],
            self._read_publication,
            on_reconnect=self._wake_all,
        )

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this process; on Python 3.11 asking for it is a system call each time."""
        return asyncio.get_running_loop()

    @property
    def closing(self) -> bool:
        """Whether this process stops, and no request waits any longer."""
        return self.dismissed.is_set()

    @property
    def count(self) -> int:
        """How many requests wait."""
        return sum(map(len, self._waiting()))

    @property
    def listening(self) -> bool:
        """Whether publications arrive now."""
        return self._subscription.connected

    async def start(self) -> None:
        """Begin to listen, in the background."""
        self._subscription.start()

    def dismiss(self) -> None:
        """End every wait, now and in future: each reads its record and is answered."""
        self.dismissed.set()
        self._wake_all()

    async def stop(self) -> None:
        """End every wait and close the connection."""
        self.dismiss()
        for task in self._leaving:
            task.cancel()
        await self._subscription.stop()

    def own(self, job_id: str) -> JobWaiter:
        """Wait for a job that is about to be submitted with this process as its waiter."""
        waiter = JobWaiter(job_id, self._loop, self._own)
        if self.closing:
            waiter.wake()
        return waiter

    @contextlib.asynccontextmanager
    async def foreign(self, job_id: str) -> AsyncIterator[JobWaiter]:
        """Wait for any job; it is subscribed to on entry, so read the record inside, then wait."""
        waiter = JobWaiter(job_id, self._loop)
        if self.closing:
            waiter.wake()
        channels = _channels(job_id)
        waiters = self._others.setdefault(job_id, set())
        waiters.add(waiter)
        try:
            if len(waiters) == 1:
                await self._subscription.subscribe(*channels)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._subscription.confirmed(channels[-1]), SUBSCRIBE_MAX_S)
            yield waiter
        finally:
            waiters.discard(waiter)
            if not waiters and self._others.get(job_id) is waiters:
                del self._others[job_id]
                # After the answer, for which the caller now has everything.
                leaving = asyncio.create_task(self._leave(job_id))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, job_id: str) -> None:
        if job_id not in self._others:
            await self._subscription.unsubscribe(*_channels(job_id))

    def _read_publication(self, channel: str, data: bytes) -> None:
        if channel.startswith(keys.META_PREFIX):
            for waiter in self._others.get(channel.removeprefix(keys.META_PREFIX), ()):
                waiter.wake()
            return
        try:
            rows = read_ended(data)
        except msgspec.MsgspecError as error:
            logger.warning("unreadable publication, every waiter reads its record: %s", error)
            self._wake_all()
            return
        for row in rows:
            for waiter in (*self._own.get(row.id, ()), *self._others.get(row.id, ())):
                waiter.wake(row if row.state else None)

    def _wake_all(self) -> None:
        for waiter in [waiter for waiters in self._waiting() for waiter in waiters]:
            waiter.wake()

    def _waiting(self) -> list[Collection[JobWaiter]]:
        return [*self._own.values(), *self._others.values()]
