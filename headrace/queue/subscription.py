"""A pub/sub connection of an API process that is made again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import redis.asyncio
from redis.exceptions import RedisError

from headrace.queue.asyncio_tasks import cancel_and_wait
from headrace.redis.backoff import Backoff
from headrace.redis.connection import drop_connections
from headrace.redis.fast_connection import NoReconnectPubSub, keep_push

logger = logging.getLogger(__name__)

#: A connection that was silent for this long is pinged, and has as long to answer.
SILENCE_MAX_S: Final = 5.0
#: A connection that another task has closed after an error has no stream to write to any more.
_LOST: Final = (RedisError, OSError, AttributeError)


class Subscription:
    """Listens to channels. A publication is lost if the connection breaks: see `on_reconnect`.

    Args:
        name: what the channels are for, in log messages.
        on_message: called with the channel and the data of each publication.
        on_reconnect: called when Redis has confirmed all channels of a new connection, the first
            one included. Publications before that may have been lost.
        on_lost: called when the connection has broken.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        name: str,
        channels: Iterable[str],
        on_message: Callable[[str, bytes], None],
        *,
        on_reconnect: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._name = name
        self._channels = set(channels)
        self._on_message = on_message
        self._on_reconnect = on_reconnect
        self._on_lost = on_lost
        self._pubsub: NoReconnectPubSub | None = None
        # A channel that was left and joined again has several confirmations due.
        self._unconfirmed: dict[str, _Unconfirmed] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether publications arrive now."""
        return self._pubsub is not None

    def start(self) -> None:
        """Begin to listen, in the background."""
        self._task = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        """Close the connection."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def subscribe(self, *channels: str) -> None:
        """Listen to more channels; `confirmed` waits until Redis has confirmed one."""
        self._channels.update(channels)
        if self._pubsub is None:
            return  # the next connection subscribes to all
        for channel in channels:
            self._unconfirmed.setdefault(channel, _Unconfirmed()).count += 1
        # If the connection breaks here, _listen makes a new one.
        with contextlib.suppress(*_LOST):
            await self._pubsub.subscribe(*channels)

    async def unsubscribe(self, *channels: str) -> None:
        """Leave channels."""
        self._channels.difference_update(channels)
        if self._pubsub is not None:
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
                logger.warning(
                    "%s subscription lost, retry in %.2f s: %s", self._name, delay_s, error
                )
                # Idle connections of the pool may be as dead, and the next attempt would take one.
                await drop_connections(self._client, idle=True)
            except Exception:
                # Without this task nothing published would ever be read again.
                delay_s = backoff.next_s()
                logger.exception("%s subscription failed, retry in %.2f s", self._name, delay_s)
            self._on_lost()
            await asyncio.sleep(delay_s)

    async def _begin(self, pubsub: NoReconnectPubSub) -> None:
        channels = set(self._channels)
        await pubsub.subscribe(*channels)
        confirmed = 0
        while confirmed < len(channels):
            message: Any = await pubsub.get_message(timeout=SILENCE_MAX_S)
            if message is None:
                raise TimeoutError("Redis did not confirm a subscription")
            confirmed += message["type"] == "subscribe"
        self._pubsub = pubsub
        # Channels that were added or left while the confirmations were on their way.
        if added := self._channels - channels:
            await self.subscribe(*added)
        if left := channels - self._channels:
            await self.unsubscribe(*left)
        self._on_reconnect()

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
                self._on_message(message["channel"].decode(), message["data"])
            elif message["type"] == "subscribe":
                self._confirm(message["channel"].decode())
            # Once everything that came together is read, the tasks that were woken run first. How a
            # job has ended comes right behind the message that it has ended.
            if connection.in_order:
                await asyncio.sleep(0)

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


class _Unconfirmed:
    """A channel whose confirmations are due."""

    __slots__ = ("count", "over")

    def __init__(self) -> None:
        self.count = 0
        self.over = asyncio.Event()
