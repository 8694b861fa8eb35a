"""Watching jobs: how each stands, looked at for all watchers of an API process together.

What a job has come to is in its record, and nowhere else; a publication only says that it is worth
a look. So a lost one costs a moment, and whoever watches may go on at another process, or after a
restart of Redis. Where nobody watches nothing is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Self

import redis.asyncio
from redis.exceptions import RedisError

from headrace.errors import BrokerError
from headrace.jobs.job import Job, State, read_progress
from headrace.jobs.progress import Progress
from headrace.queue.job_queue import JobQueue
from headrace.queue.tasks import end
from headrace.queue.waiters import Subscription, as_it_is, messages
from headrace.redis import keys
from headrace.redis.scripts.jobs import WatchedJob

logger = logging.getLogger(__name__)

#: All that is watched is looked at so often, for places in queues and for what nobody publishes.
LOOK_S: Final = 1.0
#: ... and so often while it is no more than so many jobs.
SOON_S: Final = 0.25
FEW: Final = 64
#: Looks at what was heard of are so far apart, so that many words cost one look.
GATHER_S: Final = 0.05
#: The most jobs that one call looks at.
LOOK_MAX: Final = 256
RECONNECT_S: Final = 0.5
SILENCE_S: Final = 5.0
_LOST: Final = (RedisError, OSError, AttributeError)


class JobStatus(NamedTuple):
    """How a job stands. Times are microseconds of Redis' clock; 0 = not yet.

    Attributes:
        token: the fence of its claim.
        place: its place in the queue; 0 where it does not wait there.
        due_us: when it joins its queue, while it is scheduled.
        mark: tells one word of progress from any other under the same token.
        error_json: while it is scheduled, how its last try ended.
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


def standing_of(job: Job) -> JobStatus:
    """How a job stands whose record was read."""
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
    )


def read_status(row: WatchedJob | None) -> JobStatus | None:
    """Return the status of a job from a reply of jobs/watch.lua; None if it is unknown."""
    if row is None:
        return None
    state, token = State(row.state), row.token
    mark, progress = "", None
    if row.progress or row.stages:
        mark, progress = read_progress(token, row.progress, row.stages)
    scheduled = state is State.SCHEDULED
    return JobStatus(
        state,
        int(row.attempts or 0),
        token,
        int(row.started_us or 0),
        int(row.ended_us or 0),
        0 if scheduled else int(row.place),
        int(row.place) if scheduled else 0,
        mark,
        progress,
        row.error,
    )


class WatchSubscription:
    """One who watches one job. As a context it is known to its `JobWatcher`.

    Attributes:
        standing: how the job stands, as far as is known; None before the first look.
        unknown: there is no such job any more.
        caller: whatever its owner likes to know it by.
    """

    __slots__ = ("_event", "_news", "job_id", "standing", "unknown")

    def __init__(self, news: JobWatcher, job_id: str) -> None:
        self.job_id = job_id
        self.standing: JobStatus | None = None
        self.unknown = False
        self._news = news
        self._event = asyncio.Event()

    def __enter__(self) -> Self:
        self._news.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._news.remove(self)

    def tell(self, standing: JobStatus | None) -> None:
        """What a look has found."""
        if standing != self.standing or (standing is None) != self.unknown:
            self.standing, self.unknown = standing, standing is None
            self._event.set()

    def wake(self) -> None:
        """Whoever watches has something to look at."""
        self._event.set()

    async def woken(self, seconds: float) -> None:
        """Wait until something has changed, or so many seconds have passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()


class JobWatcher:
    """What the watchers of one API process are told.

    Args:
        client: its pubsub connection is taken from this client's pool.
        queue: asks Redis.
        api_id: this process' id.
    """

    def __init__(self, client: redis.asyncio.Redis, queue: JobQueue, api_id: str) -> None:
        self.dismissed = False
        self._client: Any = client
        self._queue = queue
        self._base = keys.news(f"/{api_id}")
        self._watches: dict[str, set[WatchSubscription]] = {}
        #: Jobs that something was heard of since they were looked at.
        self._heard: set[str] = set()
        self._stir = asyncio.Event()
        self._pubsub: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._saying: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """How many watch."""
        return sum(map(len, self._watches.values()))

    def dismiss(self) -> None:
        """This process stops: nobody is to watch any longer."""
        self.dismissed = True
        for watch in self._all():
            watch.wake()

    async def stop(self) -> None:
        """Close the connection."""
        self.dismiss()
        for task in (*self._saying, *self._tasks):
            await end(task)

    def watch(self, job_id: str) -> WatchSubscription:
        """Watch a job, within the context that this is."""
        return WatchSubscription(self, job_id)

    def add(self, watch: WatchSubscription) -> None:
        """One more watches."""
        if not self._tasks:
            # Both last until the process stops; the first who watches begins them.
            bodies = (self._look_on(), self._listen())
            self._tasks = [asyncio.create_task(body) for body in bodies]
        known = self._watches.setdefault(watch.job_id, set())
        known.add(watch)
        if len(known) == 1:
            self._say("subscribe", watch.job_id)
        # What has changed since its record was read is not told by anybody.
        self._hear(watch.job_id)

    def remove(self, watch: WatchSubscription) -> None:
        """One watches no more."""
        known = self._watches[watch.job_id]
        known.discard(watch)
        if not known:
            del self._watches[watch.job_id]
            self._heard.discard(watch.job_id)
            self._say("unsubscribe", watch.job_id)

    def _all(self) -> Iterator[WatchSubscription]:
        return (watch for watches in list(self._watches.values()) for watch in list(watches))

    def _hear(self, job_id: str) -> None:
        if job_id in self._watches:
            self._heard.add(job_id)
            self._stir.set()

    async def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        look_at = 0.0
        while True:
            if not self._watches:
                await self._stirred(None)
                look_at = 0.0
                continue
            await self._stirred(look_at - loop.time())
            wanted = list(self._heard)
            self._heard.clear()
            if loop.time() >= look_at:
                wanted = list(self._watches)
                look_at = loop.time() + (SOON_S if len(wanted) <= FEW else LOOK_S)
            try:
                await self._look(wanted)
            except BrokerError:
                # Its own log says why. What was not looked at is found by the next full look.
                look_at = loop.time() + LOOK_S
            except Exception:
                # Were this task to end, nobody who watches would be told anything again.
                logger.exception("the look at watched jobs failed")
                look_at = loop.time() + LOOK_S
            await asyncio.sleep(GATHER_S)

    async def _stirred(self, seconds: float | None) -> None:
        if seconds is None or seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stir.wait()
        self._stir.clear()

    async def _look(self, ids: Sequence[str]) -> None:
        for at in range(0, len(ids), LOOK_MAX):
            some = ids[at : at + LOOK_MAX]
            for job_id, row in zip(some, await self._queue.watched(some), strict=True):
                standing = read_status(row)
                for watch in list(self._watches.get(job_id, ())):
                    watch.tell(standing)

    def _say(self, verb: str, job_id: str) -> None:
        if self._pubsub is None:
            return  # _listen subscribes to all when it is back

        async def say(pubsub: Any) -> None:
            # In the order of their tasks, each of which writes before it waits.
            if (verb == "subscribe") == (job_id in self._watches):
                with contextlib.suppress(*_LOST):
                    await getattr(pubsub, verb)(*_channels(job_id))

        task = asyncio.create_task(say(self._pubsub))
        self._saying.add(task)
        task.add_done_callback(self._saying.discard)

    async def _listen(self) -> None:
        while True:
            try:
                pool = self._client.connection_pool
                async with Subscription(pool, push_handler_func=as_it_is) as pubsub:
                    known = set(self._watches)
                    channels = [channel for job_id in known for channel in _channels(job_id)]
                    await pubsub.subscribe(self._base, *channels)
                    self._pubsub = pubsub
                    try:
                        # Those that came meanwhile.
                        for job_id in self._watches.keys() - known:
                            self._say("subscribe", job_id)
                        await self._hear_all(pubsub)
                    finally:
                        self._pubsub = None
            except _LOST as error:
                logger.warning("connection for news of jobs lost: %s", error)
            except Exception:
                # Without it the looks go on, and only tell later.
                logger.exception("connection for news of jobs failed")
            await asyncio.sleep(RECONNECT_S)

    async def _hear_all(self, pubsub: Any) -> None:
        async for message in messages(pubsub, SILENCE_S):
            if message["type"] == "message":
                channel: str = message["channel"].decode()
                for prefix in (keys.NEWS_PREFIX, keys.META_PREFIX):
                    if channel.startswith(prefix):
                        self._hear(channel.removeprefix(prefix))


def _channels(job_id: str) -> tuple[str, str]:
    return keys.news(job_id), keys.meta(job_id)
