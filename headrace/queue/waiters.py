"""Waiting for jobs to end without polling: one subscription connection per API process.

Jobs that this process submitted with a wait are heard of on its own channel, a batch at a time,
with all that the answer needs. Any other job is heard of on its Celery result's channel, which says
that it has ended, and right behind it on a channel of ours, which says how; where that is not said,
the record is read. A publication can be lost with its connection; after a reconnect every waiter is
told to look at the record again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from functools import cached_property
from typing import Any, Final, Self

import msgspec
import redis.asyncio
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from typing_extensions import override

from headrace.queue.ended_job import EndedJob, read_ended
from headrace.queue.tasks import end
from headrace.redis import keys
from headrace.redis.connection import drop_connections

logger = logging.getLogger(__name__)

RECONNECT_MIN_S: Final = 0.05
RECONNECT_MAX_S: Final = 2.0
#: A connection that was silent for so long is asked whether it lives, and given as long to answer.
SILENCE_MAX_S: Final = 5.0
#: How long a wait for any job waits for its subscription; behind it stands the read of the record.
SUBSCRIBE_MAX_S: Final = 1.0
#: A connection that another task has found broken, and closed, has no stream to write to any more.
_LOST: Final = (RedisError, OSError, AttributeError)


class JobWaiter:
    """One request that waits for one job. As a context it is known to its `Waiters`."""

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
            # Several requests may name one job by the same id.
            self._table.setdefault(self.job_id, []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._table is not None:
            waits = self._table[self.job_id]
            waits.remove(self)
            if not waits:
                del self._table[self.job_id]

    def wake(self, ended: EndedJob | None = None) -> None:
        """Tell the waiter how the job ended, or (None) to look at the record."""
        if ended is not None:
            self._ended = ended
        self._woken = True
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    async def woken(self) -> EndedJob | None:
        """Wait for the next `wake`; what is known of the end by then."""
        if not self._woken:
            self._future = self._loop.create_future()
            await self._future
            self._future = None
        self._woken = False
        return self._ended


async def as_it_is(push: Any) -> Any:
    """In place of redis-py's own handler, which writes out every push for a log that is off."""
    return push


class Subscription(PubSub):
    """Connects once. Where its connection breaks that is an error, and `_listen` begins anew.

    redis-py would connect again in passing: whoever listens and whoever subscribes at that moment
    would do so at the same time on one connection, and break each other's handshake.
    """

    @override
    async def connect(self) -> None:
        connection: Any = self.connection
        if connection is not None and not connection.is_connected:
            raise RedisConnectionError("the connection was lost")
        await super().connect()  # type: ignore[no-untyped-call]

    @override
    async def _reconnect(self, conn: Any, *_: Any, **__: Any) -> None:
        await conn.disconnect(nowait=True)


async def messages(pubsub: PubSub, silence_s: float) -> AsyncIterator[dict[str, Any]]:
    """What comes on a subscription connection, for as long as that lives.

    Raises:
        TimeoutError: it was silent for so long, was asked whether it lives, and did not say so.
    """
    asked = False
    connection: Any = pubsub.connection
    while True:
        message = await pubsub.get_message(timeout=silence_s)
        if message is not None:
            asked = False
            yield message
            # Who was told goes first, once all is told that came with it (how a job has ended comes
            # behind that it has): to wait for the next takes redis-py as long as some answers.
            if connection.in_order:
                await asyncio.sleep(0)
        elif asked:
            raise TimeoutError("Redis does not answer on a subscription connection")
        else:
            asked = True
            await pubsub.ping()


def _channels(job_id: str) -> tuple[str, str]:
    """Those of a job; once the last is confirmed, so is the first."""
    return keys.ended(job_id), keys.meta(job_id)


class _Topic:
    """A job that requests wait for which this process did not submit with a wait."""

    def __init__(self) -> None:
        self.waits: set[JobWaiter] = set()
        self.subscribed = asyncio.Event()


class Waiters:
    """The waiters of one API process.

    Args:
        client: its pubsub connection is taken from this client's pool.
        api_id: this process' id; jobs carry it in their record.

    Attributes:
        dismissed: set once this process stops.
    """

    def __init__(self, client: redis.asyncio.Redis, api_id: str) -> None:
        self.api_id = api_id
        self.dismissed = asyncio.Event()
        self._client = client
        self._own: dict[str, list[JobWaiter]] = {}
        self._topics: dict[str, _Topic] = {}
        # How many confirmations are due per channel: one that left and came back has an older one.
        self._unconfirmed: defaultdict[str, int] = defaultdict(int)
        self._pubsub: PubSub | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this process; to ask for it is a system call each time, on Python 3.11."""
        return asyncio.get_running_loop()

    @property
    def closing(self) -> bool:
        """Whether this process stops, and nobody is to wait any longer."""
        return self.dismissed.is_set()

    @property
    def count(self) -> int:
        """How many requests wait."""
        return sum(map(len, self._waiting()))

    @property
    def listening(self) -> bool:
        """Whether the connection stands."""
        return self._pubsub is not None

    async def start(self) -> None:
        """Begin to listen, in the background."""
        self._task = asyncio.create_task(self._listen())

    def dismiss(self) -> None:
        """End every wait, now and from here on: each looks at its record and is answered."""
        self.dismissed.set()
        self._wake_all()

    async def stop(self) -> None:
        """End every wait and close the connection."""
        self.dismiss()
        for task in self._leaving:
            task.cancel()
        if self._task is not None:
            await end(self._task)

    def own(self, job_id: str) -> JobWaiter:
        """Wait for a job that is about to be submitted with this process as its waiter."""
        wait = JobWaiter(job_id, self._loop, self._own)
        if self.closing:
            wait.wake()
        return wait

    @contextlib.asynccontextmanager
    async def foreign(self, job_id: str) -> AsyncIterator[JobWaiter]:
        """Wait for any job; subscribed when this enters, so read the record inside, then wait."""
        wait = JobWaiter(job_id, self._loop)
        if self.closing:
            wait.wake()
        topic = self._topics.get(job_id)
        if topic is None:
            topic = self._topics[job_id] = _Topic()
        topic.waits.add(wait)
        try:
            if len(topic.waits) == 1:
                await self._subscribe(job_id, topic)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(topic.subscribed.wait(), SUBSCRIBE_MAX_S)
            yield wait
        finally:
            topic.waits.discard(wait)
            if not topic.waits and self._topics.get(job_id) is topic:
                del self._topics[job_id]
                # Behind the answer, which the caller now has all for.
                leaving = asyncio.create_task(self._leave(job_id))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, job_id: str) -> None:
        if job_id not in self._topics:
            await self._say("unsubscribe", *_channels(job_id))

    async def _subscribe(self, job_id: str, topic: _Topic) -> None:
        if self._pubsub is None:
            # _listen subscribes to all and wakes all when it is back.
            topic.subscribed.set()
            return
        self._unconfirmed[keys.meta(job_id)] += 1
        await self._say("subscribe", *_channels(job_id))

    async def _say(self, verb: str, *channels: str) -> None:
        if self._pubsub is None:
            return
        # A connection that breaks here breaks for _listen too, which begins anew.
        with contextlib.suppress(*_LOST):
            await getattr(self._pubsub, verb)(*channels)

    async def _listen(self) -> None:
        delay_s = RECONNECT_MIN_S
        while True:
            try:
                pool = self._client.connection_pool
                async with Subscription(pool, push_handler_func=as_it_is) as pubsub:
                    try:
                        await self._begin(pubsub)
                        delay_s = RECONNECT_MIN_S
                        await self._hear_all(pubsub)
                    finally:
                        self._end()  # before it is closed: who said something then would open it
            except _LOST as error:
                logger.warning("waiting connection lost, back in %.2f s: %s", delay_s, error)
                # What is idle in the pool may be as dead, and would be taken for the next try.
                await drop_connections(self._client, idle=True)
            except Exception:
                # Were this task to end, no wait of this process would be woken again.
                logger.exception("waiting connection failed, back in %.2f s", delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RECONNECT_MAX_S)

    def _end(self) -> None:
        """Nothing can be said any more, and no confirmation comes."""
        self._pubsub = None
        self._unconfirmed.clear()
        for topic in self._topics.values():
            topic.subscribed.set()

    async def _begin(self, pubsub: PubSub) -> None:
        """Subscribe to what is waited for; once Redis has confirmed, all look at their records."""
        own = keys.done_channel(self.api_id)
        channels = {own, *(channel for job_id in self._topics for channel in _channels(job_id))}
        await pubsub.subscribe(*channels)
        confirmed = 0
        while confirmed < len(channels):
            message = await pubsub.get_message(timeout=SILENCE_MAX_S)
            if message is None:
                raise TimeoutError("Redis did not confirm a subscription")
            confirmed += message["type"] == "subscribe"
        self._pubsub = pubsub
        # Those that came while the confirmations were on their way.
        for job_id, topic in list(self._topics.items()):
            if keys.meta(job_id) not in channels:
                await self._subscribe(job_id, topic)
        self._wake_all()

    async def _hear_all(self, pubsub: PubSub) -> None:
        async for message in messages(pubsub, SILENCE_MAX_S):
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "message":
            channel: str = message["channel"].decode()
            if channel.startswith(keys.META_PREFIX):
                topic = self._topics.get(channel.removeprefix(keys.META_PREFIX))
                for wait in topic.waits if topic is not None else ():
                    wait.wake()
            else:
                self._hear_ends(message["data"])
        elif kind == "subscribe":
            channel = message["channel"].decode()
            if channel.startswith(keys.META_PREFIX):
                self._confirm(channel)

    def _confirm(self, channel: str) -> None:
        self._unconfirmed[channel] -= 1
        if self._unconfirmed[channel] <= 0:
            del self._unconfirmed[channel]
            topic = self._topics.get(channel.removeprefix(keys.META_PREFIX))
            if topic is not None:
                topic.subscribed.set()

    def _hear_ends(self, data: bytes) -> None:
        try:
            rows = read_ended(data)
        except msgspec.MsgspecError as error:
            logger.warning(
                "a publication cannot be read, so that all look at their records: %s", error
            )
            self._wake_all()
            return
        for row in rows:
            topic = self._topics.get(row.id)
            for wait in (*self._own.get(row.id, ()), *(topic.waits if topic is not None else ())):
                wait.wake(row if row.state else None)

    def _wake_all(self) -> None:
        for wait in [wait for waits in self._waiting() for wait in waits]:
            wait.wake()

    def _waiting(self) -> list[Collection[JobWaiter]]:
        return [*self._own.values(), *(topic.waits for topic in self._topics.values())]
