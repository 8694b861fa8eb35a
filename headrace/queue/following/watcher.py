"""Watching jobs: the status of every watched job, read for all watchers of an API process together.

The status of a job is in its record and nowhere else; a publication only means that the record is
worth reading. So a lost publication costs a moment, and a client may go on watching at another
process, or after a restart of Redis. Without watchers nothing is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple, Self

from headrace.errors import BrokerError
from headrace.jobs.job import NEXT_PLACE, Job, State, not_begun, read_progress
from headrace.jobs.progress import Progress
from headrace.queue.asyncio_tasks import cancel_and_wait
from headrace.queue.following.subscription import Subscription
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
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


class JobStatus(NamedTuple):
    """The status of a job. Times are microseconds of Redis' clock; 0 for not yet.

    Attributes:
        place: its place in the queue; 0 if it does not wait there.
        due_us: when it joins its queue, while it is scheduled.
        mark: differs between two reports of progress under the same token.
        error_json: how its last try ended, while it is scheduled.
        created_us: when it was created: a later job under its id has another time.
    """

    state: State
    attempts: int
    token: str
    started_us: int
    ended_us: int
    place: int
    due_us: int
    mark: str
    progress: Progress | None
    error_json: str
    created_us: int


def status_of(job: Job) -> JobStatus:
    """Return the status of a job whose record was read."""
    return JobStatus(
        job.state,
        job.attempts,
        job.token,
        job.started_us,
        job.ended_us,
        job.place,
        job.due_us,
        job.progress_mark,
        job.progress,
        job.error_json if job.state is State.SCHEDULED else "",
        job.created_us,
    )


def read_status(row: Any) -> JobStatus | None:
    """Read a job's row in the reply of jobs/watch.lua; None if the job is unknown."""
    if not isinstance(row, list):
        return None
    values: list[Any] = [
        value if isinstance(value, int) else value.decode("utf-8", "replace") for value in row
    ]
    letter, attempts, token, started, ended, place, reported, stages, error, created = values
    leased, started_us = State(letter), int(started or 0)
    state, times = not_begun(leased, int(attempts or 0), started_us)
    if state is not leased:
        place = NEXT_PLACE
    scheduled = state is State.SCHEDULED
    mark, progress = read_progress(token, reported, stages) if reported or stages else ("", None)
    return JobStatus(
        state, times, token, started_us, int(ended or 0),
        0 if scheduled else place, place if scheduled else 0, mark, progress, error,
        int(created or 0),
    )  # fmt: skip


class JobWatch:
    """One client that watches one job. Inside its context its `JobWatcher` updates it.

    Attributes:
        created_us: when the job was created: a record of another time is that of a later job.
        status: the status of the job, as last read; None before the first read.
        unknown: the job does not exist any more.
    """

    __slots__ = ("_event", "_watcher", "created_us", "job_id", "status", "unknown")

    def __init__(self, watcher: JobWatcher, job: Job) -> None:
        self.job_id = job.id
        self.created_us = job.created_us
        self.status: JobStatus | None = None
        self.unknown = False
        self._watcher = watcher
        self._event = asyncio.Event()

    def __enter__(self) -> Self:
        self._watcher.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.remove(self)

    def update(self, status: JobStatus | None) -> None:
        """Set the status that was read, and wake the client if it has changed."""
        if status != self.status or (status is None) != self.unknown:
            self.status, self.unknown = status, status is None
            self._event.set()

    def wake(self) -> None:
        """Wake the client."""
        self._event.set()

    async def woken(self, seconds: float) -> None:
        """Wait until the status has changed, or `seconds` have passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
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
        self._subscribing: set[asyncio.Task[None]] = set()

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

    def watch(self, job: Job) -> JobWatch:
        """Return a context within which a job is watched."""
        return JobWatch(self, job)

    def add(self, watch: JobWatch) -> None:
        """Begin a watch."""
        if self._reader is None:
            # It begins with the first watch, and lasts until the process stops.
            self._reader = asyncio.create_task(self._read_on())
        known = self._watches.setdefault(watch.job_id, set())
        known.add(watch)
        if len(known) == 1:
            self._in_background(
                self._subscription.subscribe(self._read_publication, *_channels(watch.job_id))
            )
        # A change since the record was read is not published again.
        self._note_change(watch.job_id)

    def remove(self, watch: JobWatch) -> None:
        """End a watch."""
        known = self._watches[watch.job_id]
        known.discard(watch)
        if not known:
            del self._watches[watch.job_id]
            self._changed.discard(watch.job_id)
            self._in_background(
                self._subscription.unsubscribe(self._read_publication, *_channels(watch.job_id))
            )

    def _in_background(self, call: Coroutine[Any, Any, None]) -> None:
        # Tasks run in the order of their creation, and each writes before it waits.
        task = asyncio.create_task(call)
        self._subscribing.add(task)
        task.add_done_callback(self._subscribing.discard)

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
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stir.wait()
        self._stir.clear()

    async def _read(self, ids: Sequence[str]) -> None:
        for page in pages_of(ids, READ_MAX_JOBS):
            for job_id, row in zip(page, await self._queue.watched(page), strict=True):
                status = read_status(row)
                for watch in list(self._watches.get(job_id, ())):
                    same = status is not None and status.created_us == watch.created_us
                    watch.update(status if same else None)

    def _read_publication(self, channel: str, _: bytes) -> None:
        for prefix in (keys.progress_channel, keys.meta):
            if channel.startswith(prefix):
                self._note_change(channel.removeprefix(prefix))


def _channels(job_id: str) -> tuple[str, str]:
    return keys.progress_channel(job_id), keys.meta(job_id)
