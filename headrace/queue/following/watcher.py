"""Watching jobs: the status of every watched job, read for all watchers of an API process together.

The status of a job is in its record and nowhere else; a publication only means that the record is
worth reading. So a lost publication costs a moment, and a client may go on watching at another
process, or after a restart of Redis. Without watchers nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from headrace.errors import BrokerError
from headrace.jobs.job import Job, job_from_record
from headrace.queue.asyncio_tasks import RunningTasks, cancel_and_wait, wait_at_most
from headrace.queue.following.subscription import Subscription
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.fields import JobField
from headrace.redis.scripts import pages_of

logger = logging.getLogger(__name__)

#: Seconds between two reads of all watched jobs: places in queues are not published.
READ_ALL_S: Final = 1.0
#: ... while they are at most FEW_JOBS.
READ_FEW_S: Final = 0.25
FEW_JOBS: Final = 64
#: Seconds between two reads after publications, so that a burst costs one read.
GATHER_S: Final = 0.05
#: The most jobs that one call reads.
READ_MAX_JOBS: Final = 256


#: The fields of a row of records/watch.lua, but for the place, which is before the progress.
_ROW: Final = (
    JobField.STATE, JobField.ATTEMPTS, JobField.TOKEN, JobField.STARTED, JobField.ENDED,
    JobField.PROGRESS, JobField.STAGES, JobField.ERROR, JobField.CREATED,
)  # fmt: skip
_PLACE_AT: Final = _ROW.index(JobField.PROGRESS)


def read_status(job_id: str, row: Any) -> Job | None:
    """Read a job's row in the reply of records/watch.lua; None if the job is unknown.

    The job has the fields of its status alone, and an error only while it is scheduled.
    """
    if not isinstance(row, list):
        return None
    place = row.pop(_PLACE_AT)
    pairs = zip(_ROW, row, strict=True)
    record = {name: value.decode("utf-8", "replace") for name, value in pairs if value}
    return job_from_record(job_id, record, place=place)


class JobWatch:
    """One client that watches one job.

    Attributes:
        created_us: when the job was created: a record of another time is that of a later job.
        status: the status of the job, as last read; None before the first read.
        unknown: the job does not exist any more.
    """

    __slots__ = ("_event", "created_us", "status", "unknown")

    def __init__(self, job: Job) -> None:
        self.created_us = job.created_us
        self.status: Job | None = None
        self.unknown = False
        self._event = asyncio.Event()

    def update(self, status: Job | None) -> None:
        """Set the status that was read, and wake the client if it has changed."""
        if status != self.status or (status is None) != self.unknown:
            self.status, self.unknown = status, status is None
            self._event.set()

    def wake(self) -> None:
        """Wake the client."""
        self._event.set()

    async def woken(self, seconds: float) -> None:
        """Wait until the status has changed, or `seconds` have passed."""
        await wait_at_most(seconds, self._event)
        self._event.clear()


class JobWatcher:
    """Updates the watches of one API process."""

    def __init__(self, subscription: Subscription, queue: JobQueue) -> None:
        self.dismissed = False
        self._queue = queue
        self._subscription = subscription
        self._watches: dict[str, set[JobWatch]] = {}
        #: Jobs that something was published about since they were read.
        self._changed: set[str] = set()
        self._stir = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        # Each writes before it waits, so that the order is kept.
        self._subscribing = RunningTasks()

    @property
    def count(self) -> int:
        """How many watches there are."""
        return sum(map(len, self._watches.values()))

    def dismiss(self) -> None:
        """End every watch: this process stops."""
        self.dismissed = True
        for watch in self._all():
            watch.wake()

    async def stop(self) -> None:
        """End every watch."""
        self.dismiss()
        tasks = [*self._subscribing, *([self._reader] if self._reader is not None else [])]
        await cancel_and_wait(*tasks)

    @contextmanager
    def watch(self, job: Job) -> Iterator[JobWatch]:
        """Watch a job: within this context its watch is updated."""
        if self._reader is None:
            # It begins with the first watch, and lasts until the process stops.
            self._reader = asyncio.create_task(self._read_on())
        watch, channels = JobWatch(job), (keys.progress_channel(job.id), keys.meta(job.id))
        watches = self._watches.setdefault(job.id, set())
        watches.add(watch)
        if len(watches) == 1:
            self._subscribing.begin(self._subscription.subscribe(self._read_publication, *channels))
        # A change since the record was read is not published again.
        self._note_change(job.id)
        try:
            yield watch
        finally:
            watches.discard(watch)
            if not watches:
                del self._watches[job.id]
                self._changed.discard(job.id)
                self._subscribing.begin(
                    self._subscription.unsubscribe(self._read_publication, *channels)
                )

    def _all(self) -> Iterator[JobWatch]:
        return (watch for watches in list(self._watches.values()) for watch in list(watches))

    def _note_change(self, job_id: str) -> None:
        if job_id in self._watches:
            self._changed.add(job_id)
            self._stir.set()

    async def _read_on(self) -> None:
        loop = asyncio.get_running_loop()
        read_all_at = 0.0
        while True:
            if not self._watches:
                await self._stirred(None)
                read_all_at = 0.0
                continue
            await self._stirred(read_all_at - loop.time())
            wanted = list(self._changed)
            self._changed.clear()
            if loop.time() >= read_all_at:
                wanted = list(self._watches)
                read_all_at = loop.time() + (READ_FEW_S if len(wanted) <= FEW_JOBS else READ_ALL_S)
            try:
                await self._read(wanted)
            except BrokerError:
                # The reason is logged. The next read of all jobs catches up.
                read_all_at = loop.time() + READ_ALL_S
            except Exception:
                # Without this task no watch would be updated again.
                logger.exception("reading watched jobs failed")
                read_all_at = loop.time() + READ_ALL_S
            await asyncio.sleep(GATHER_S)

    async def _stirred(self, seconds: float | None) -> None:
        if seconds is None or seconds > 0:
            await wait_at_most(seconds, self._stir)
        self._stir.clear()

    async def _read(self, ids: Sequence[str]) -> None:
        for page in pages_of(ids, READ_MAX_JOBS):
            for job_id, row in zip(page, await self._queue.watched(page), strict=True):
                status = read_status(job_id, row)
                for watch in list(self._watches.get(job_id, ())):
                    same = status is not None and status.created_us == watch.created_us
                    watch.update(status if same else None)

    def _read_publication(self, channel: str, _: bytes) -> None:
        for prefix in (keys.progress_channel, keys.meta):
            if channel.startswith(prefix):
                self._note_change(channel.removeprefix(prefix))
