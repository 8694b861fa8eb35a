"""The pub/sub connection of a process, which is made again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

import redis.asyncio
from redis.exceptions import RedisError

from headrace.queue.asyncio_tasks import cancel_and_wait
from headrace.redis.connection import drop_connections
from headrace.redis.fast_connection import NoReconnectPubSub, keep_push
from headrace.redis.outages import Backoff

logger = logging.getLogger(__name__)

#: A connection that was silent for this long is pinged, and has as long to answer.
SILENCE_MAX_S: Final = 5.0
#: A connection that another task has closed after an error has no stream to write to any more.
_LOST: Final = (RedisError, OSError, AttributeError)


#: Takes the channel and the data of a publication.
OnMessage = Callable[[str, bytes], None]


class Subscription:
    """The pub/sub connection of a process, for all of its parts that listen to channels.

    A publication is lost if the connection breaks: see `on_reconnect` of `add`.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        # Several parts may listen to one channel.
        self._listeners: dict[str, set[OnMessage]] = {}
        self._on_reconnect: dict[OnMessage, Callable[[], None]] = {}
        self._on_lost: list[Callable[[], None]] = []
        self._pubsub: NoReconnectPubSub | None = None
        # A channel that was left and joined again has several confirmations due.
        self._unconfirmed: dict[str, _Unconfirmed] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether publications arrive now."""
        return self._pubsub is not None

    def add(
        self,
        on_message: OnMessage,
        *channels: str,
        on_reconnect: Callable[[], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """Add a part, before `start`.

        Args:
            on_message: called with the channel and the data of each publication.
            channels: those that it always listens to.
            on_reconnect: called when Redis has confirmed all channels of a new connection, the
                first one included. Publications before that may have been lost.
            on_lost: called when the connection has broken.
        """
        for channel in channels:
            self._listeners.setdefault(channel, set()).add(on_message)
        if on_reconnect is not None:
            self._on_reconnect[on_message] = on_reconnect
        if on_lost is not None:
            self._on_lost.append(on_lost)

    def start(self) -> None:
        """Begin to listen, in the background."""
        self._task = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        """Close the connection."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def subscribe(self, on_message: OnMessage, *channels: str) -> None:
        """Listen to more channels; `confirmed` waits until Redis has confirmed one."""
        added = [channel for channel in channels if channel not in self._listeners]
        for channel in channels:
            self._listeners.setdefault(channel, set()).add(on_message)
        await self._join(added)

    async def unsubscribe(self, on_message: OnMessage, *channels: str) -> None:
        """Leave channels."""
        left = []
        for channel in channels:
            listeners = self._listeners.get(channel, set())
            listeners.discard(on_message)
            if not listeners and self._listeners.pop(channel, None) is not None:
                left.append(channel)
        await self._leave(left)

    async def _join(self, channels: Collection[str]) -> None:
        if self._pubsub is None or not channels:
            return  # the next connection subscribes to all
        for channel in channels:
            self._unconfirmed.setdefault(channel, _Unconfirmed()).count += 1
        # If the connection breaks here, _listen makes a new one.
        with contextlib.suppress(*_LOST):
            await self._pubsub.subscribe(*channels)

    async def _leave(self, channels: Collection[str]) -> None:
        if self._pubsub is not None and channels:
            with contextlib.suppress(*_LOST):
                await self._pubsub.unsubscribe(*channels)

    async def confirmed(self, channel: str) -> None:
        """Wait until Redis has confirmed this channel, or the connection is lost."""
        unconfirmed = self._unconfirmed.get(channel)
        if unconfirmed is not None:
            await unconfirmed.over.wait()

    async def _listen(self) -> None:
        backoff = Backoff()
        while True:
            try:
                pool = self._client.connection_pool
                async with NoReconnectPubSub(pool, push_handler_func=keep_push) as pubsub:
                    try:
                        await self._begin(pubsub)
                        backoff.reset()
                        await self._read(pubsub)
                    finally:
                        self._end()  # before it is closed: a later write would open it again
            except _LOST as error:
                delay_s = backoff.next_s()
                logger.warning("subscription lost, retry in %.2f s: %s", delay_s, error)
                # Idle connections of the pool may be as dead, and the next attempt would take one.
                await drop_connections(self._client, idle=True)
            except Exception:
                # Without this task nothing published would ever be read again.
                delay_s = backoff.next_s()
                logger.exception("subscription failed, retry in %.2f s", delay_s)
            for lost in self._on_lost:
                lost()
            await asyncio.sleep(delay_s)

    async def _begin(self, pubsub: NoReconnectPubSub) -> None:
        channels = set(self._listeners)
        await pubsub.subscribe(*channels)
        confirmed = 0
        while confirmed < len(channels):
            message: Any = await pubsub.get_message(timeout=SILENCE_MAX_S)
            if message is None:
                raise TimeoutError("Redis did not confirm a subscription")
            confirmed += message["type"] == "subscribe"
        self._pubsub = pubsub
        # Channels that were added or left while the confirmations were on their way.
        await self._join(self._listeners.keys() - channels)
        await self._leave(channels - self._listeners.keys())
        for reconnected in self._on_reconnect.values():
            reconnected()

    async def _read(self, pubsub: NoReconnectPubSub) -> None:
        pinged = False
        connection: Any = pubsub.connection
        while True:
            message: Any = await pubsub.get_message(timeout=SILENCE_MAX_S)
            if message is None:
                if pinged:
                    raise TimeoutError("Redis does not answer on a subscription connection")
                pinged = True
                await pubsub.ping()
                continue
            pinged = False
            if message["type"] == "message":
                self._publish(message["channel"].decode(), message["data"])
            elif message["type"] == "subscribe":
                self._confirm(message["channel"].decode())
            # Once everything that came together is read, the tasks that were woken run first. How a
            # job has ended comes right behind the message that it has ended.
            if connection.in_order:
                await asyncio.sleep(0)

    def _publish(self, channel: str, data: bytes) -> None:
        for on_message in self._listeners.get(channel, ()):
            try:
                on_message(channel, data)
            except Exception:
                # The other parts go on; this one reads what it may have missed.
                logger.exception("a publication on %s failed", channel)
                if on_message in self._on_reconnect:
                    self._on_reconnect[on_message]()

    def _confirm(self, channel: str) -> None:
        unconfirmed = self._unconfirmed.get(channel)
        if unconfirmed is not None:
            unconfirmed.count -= 1
            if unconfirmed.count <= 0:
                del self._unconfirmed[channel]
                unconfirmed.over.set()

    def _end(self) -> None:
        self._pubsub = None
        for unconfirmed in self._unconfirmed.values():
            unconfirmed.over.set()
        self._unconfirmed.clear()


@dataclass(slots=True)
class _Unconfirmed:
    """A channel whose confirmations are due."""

    count: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)
