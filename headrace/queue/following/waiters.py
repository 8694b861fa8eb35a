"""Waiting for jobs to end without polling.

Each process has a channel of its own. It receives the ends of the jobs that it submitted with a
wait, a batch at a time, with everything that the answer needs. For any other job it subscribes to
two channels. The end is published on that of the Celery result; short results follow on
`hr:ended:<id>`. Without the latter the waiter reads the record. A publication can be lost with its
connection, so after a reconnect every waiter reads its record again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Final, Self

import msgspec

from headrace.jobs.job import NO_WAIT, STATES, Job, read_batch, stored_result
from headrace.queue.asyncio_tasks import RunningTasks
from headrace.queue.following.subscription import Subscription
from headrace.redis import keys
from headrace.redis.fields import JobField

logger = logging.getLogger(__name__)

#: How long a wait for any job waits for its subscription; then it reads the record.
SUBSCRIBE_MAX_S: Final = 1.0


class EndedJob(msgspec.Struct, array_like=True, frozen=True):
    """How a job ended, as jobs/settle.lua publishes it.

    A row with the id alone means that the record must be read. Times are microseconds of Redis'
    clock as text; Lua writes an absent value as false.
    """

    id: str
    state: str = ""
    started_us: str | bool = ""
    ended_us: str = ""
    attempts: str | bool = ""
    batch: str = ""
    timings: str = ""
    extra: str = ""
    value: str = ""
    meta: str = ""
    dead: str = ""
    device_wait: str = NO_WAIT
    version: str = ""
    worker: str = ""
    earlier: str = ""

    @property
    def at_us(self) -> int:
        """When it ended; 0 if that cannot be read."""
        return int(self.ended_us) if self.ended_us.isdecimal() else 0

    def job(
        self,
        model: str,
        created_us: int,
        metadata_json: str = "",
        asked_version: str = "",
        trace_id: str = "",
    ) -> Job:
        """Return the job as it would be read from its record."""
        batch_size, batch_padding = read_batch(self.batch)
        return Job(
            id=self.id,
            model=model,
            version=self.version,
            state=STATES[self.state],
            created_us=created_us,
            started_us=int(self.started_us or 0),
            ended_us=int(self.ended_us or 0),
            attempts=int(self.attempts or 0),
            batch_size=batch_size,
            batch_padding=batch_padding,
            timings=self.timings,
            device_wait=self.device_wait,
            result_type=self.value if self.extra == JobField.RESULT_TYPE else "",
            error_json=self.value if self.extra == JobField.ERROR else "",
            metadata_json=metadata_json,
            stored=stored_result(self.value) if self.extra == JobField.RESULT_REF else None,
            recorded=self.value if self.extra == JobField.RESULT else "",
            meta=self.meta,
            dead_lettered=bool(self.dead),
            worker=self.worker,
            earlier=self.earlier,
            asked_version=asked_version,
            trace_id=trace_id,
        )


_ROWS: Final = msgspec.msgpack.Decoder(list[EndedJob])


class JobWaiter:
    """One request that waits for one job. While it is entered, its `table` can wake it.

    A context of its own and a future cost 5 % less of the API's CPU than `contextlib` and an event
    (`python -m benchmarks`).

    An id names another job once a record is gone, perhaps of another API key. So only an end after
    the job's creation counts, and of several the first.
    """

    __slots__ = ("_created_us", "_ended", "_future", "_table", "_woken", "job_id")

    def __init__(self, job_id: str, table: dict[str, set[JobWaiter]] | None = None) -> None:
        self.job_id = job_id
        self._table = {} if table is None else table
        self._woken = False
        self._future: asyncio.Future[None] | None = None
        self._ended: EndedJob | None = None
        self._created_us = 0

    def __enter__(self) -> Self:
        # Several requests may wait for the same id.
        self._table.setdefault(self.job_id, set()).add(self)
        return self

    def __exit__(self, *_: object) -> None:
        waiters = self._table[self.job_id]
        waiters.discard(self)
        if not waiters:
            del self._table[self.job_id]

    def wake(self, ended: EndedJob | None = None) -> None:
        """Wake the request, with how the job ended, or None to make it read the record."""
        if ended is not None and self._ended is None and ended.at_us >= self._created_us:
            self._ended = ended
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def submitted(self, created_us: int) -> None:
        """Note when the job was created; it may have ended by now."""
        self._created_us = created_us
        if self._ended is not None and self._ended.at_us < created_us:
            self._ended = None

    def watched(self, created_us: int) -> None:
        """Note when an earlier request's job was created, and read its record first."""
        self._created_us = created_us
        self._ended = None
        self.wake()

    async def woken(self) -> EndedJob | None:
        """Wait for the next `wake`; return how the job ended, if that is known."""
        if not self._woken:
            self._future = asyncio.get_running_loop().create_future()
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
        api_id: the id of this process; jobs carry it in their records.

    Attributes:
        dismissed: set once this process stops.
    """

    def __init__(self, subscription: Subscription, api_id: str) -> None:
        self.api_id = api_id
        self.dismissed = asyncio.Event()
        self._own: dict[str, set[JobWaiter]] = {}
        self._others: dict[str, set[JobWaiter]] = {}
        self._leaving = RunningTasks()
        self._subscription = subscription
        subscription.add(
            self._read_publication, keys.done_channel(api_id), on_reconnect=self.wake_all
        )

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

    def dismiss(self) -> None:
        """End every wait, now and in future: each reads its record and is answered."""
        self.dismissed.set()
        self.wake_all()

    def stop(self) -> None:
        """End every wait."""
        self.dismiss()
        for task in self._leaving:
            task.cancel()

    def own(self, job_id: str) -> JobWaiter:
        """Wait for a job that is about to be submitted with this process as its waiter."""
        waiter = JobWaiter(job_id, self._own)
        if self.closing:
            waiter.wake()
        return waiter

    @contextlib.asynccontextmanager
    async def foreign(self, job_id: str) -> AsyncIterator[JobWaiter]:
        """Wait for any job; it is subscribed to on entry, so read the record inside, then wait."""
        waiter = JobWaiter(job_id)
        if self.closing:
            waiter.wake()
        channels = _channels(job_id)
        waiters = self._others.setdefault(job_id, set())
        waiters.add(waiter)
        try:
            if len(waiters) == 1:
                await self._subscription.subscribe(self._read_publication, *channels)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._subscription.confirmed(channels[-1]), SUBSCRIBE_MAX_S)
            yield waiter
        finally:
            waiters.discard(waiter)
            if not waiters and self._others.get(job_id) is waiters:
                del self._others[job_id]
                # After the answer, for which the caller now has everything.
                self._leaving.begin(self._leave(job_id))

    async def _leave(self, job_id: str) -> None:
        if job_id not in self._others:
            await self._subscription.unsubscribe(self._read_publication, *_channels(job_id))

    def _read_publication(self, channel: str, data: bytes) -> None:
        if channel.startswith(keys.meta):
            for waiter in self._others.get(channel.removeprefix(keys.meta), ()):
                waiter.wake()
            return
        try:
            rows = _ROWS.decode(data)
        except msgspec.MsgspecError as error:
            logger.warning("unreadable publication, every waiter reads its record: %s", error)
            self.wake_all()
            return
        for row in rows:
            for waiter in (*self._own.get(row.id, ()), *self._others.get(row.id, ())):
                waiter.wake(row if row.state else None)

    def wake_all(self) -> None:
        """Let every waiter read its record."""
        for waiter in [waiter for waiters in self._waiting() for waiter in waiters]:
            waiter.wake()

    def _waiting(self) -> list[set[JobWaiter]]:
        return [*self._own.values(), *self._others.values()]
