"""kombu's Redis transport as a reliable queue: a popped message always has an owner.

kombu pops a message and then records it as unacknowledged. A worker that is killed in between loses
the message. A recorded message is redelivered after a fixed time, even if its worker still runs.
Here a message is moved into a list of its worker and then recorded as held by it. It is requeued
only when that worker is dead (`headrace/redis/scripts/background/requeue_dead.lua`).

This is the one file that depends on kombu's private names; read from kombu 5.7.0.
`tests/unit/workers/celery/test_celery_internals.py` fails when one of them goes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any, Final
from uuid import uuid4

from kombu import transport as kombu_transport
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import loads
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ResponseError
from typing_extensions import override

from headrace.redis import keys
from headrace.redis.script_client import call_script
from headrace.redis.scripts import script
from workers.celery.celery_internals import is_message

logger = logging.getLogger(__name__)

#: Seconds between two looks for a message while Redis is at its maxmemory, where BLMOVE is refused.
FULL_S: Final = 1.0

#: The transport option with the worker's name; "" on a channel that only sends.
_OPTION: Final = "owner"


class QoS(kombu_redis.QoS):
    """Records unacknowledged messages under the name of their worker."""

    channel: Any
    #: A lost connection cannot restore its messages; the liveness step requeues them.
    restore_at_shutdown = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Messages whose end is not recorded yet: delivery tag -> whether to requeue it.
        self._unsettled: dict[str, bool] = {}

    @override
    def append(self, message: Any, delivery_tag: str) -> None:
        self.channel.call("hold", delivery_tag, self.channel.taken)
        virtual.QoS.append(self, message, delivery_tag)

    @override
    def ack(self, delivery_tag: str) -> None:
        self._settle(delivery_tag, requeue=False)

    @override
    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._settle(delivery_tag, requeue=requeue)

    def settle_again(self) -> None:
        """Record ends of tasks that could not be recorded; raise RedisError if that still fails."""
        while self._unsettled:
            tag, requeue = next(iter(self._unsettled.items()))
            self._record(tag, requeue)
            del self._unsettled[tag]

    def _settle(self, tag: str, *, requeue: bool) -> None:
        virtual.QoS.ack(self, tag)
        if self.channel.closed:
            logger.info("connection of a background task lost: the task runs again")
            return
        try:
            self._record(tag, requeue)
        except self.channel.connection_errors as error:
            logger.info("end of a background task not recorded; it will be retried: %s", error)
            self._unsettled[tag] = requeue

    def _record(self, tag: str, requeue: bool) -> None:
        self.channel.call("settle", tag, int(requeue))

    @override
    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Do nothing, as no message is requeued by time alone."""


class _Moving:
    """What both kinds of channel do differently from kombu's."""

    QoS: Any = QoS
    from_transport_options: tuple[str, ...]
    owner = ""
    taken = b""
    #: Until when no message is requested.
    _full_until = 0.0
    brpop_timeout: int
    closed: bool
    qos: Any
    client: Any
    connection: Any
    connection_errors: tuple[type[BaseException], ...]
    _in_poll: Any
    _brpop_sent_at: float
    _queue_cycle: Any
    active_queues: Any

    def call(self, name: str, *arguments: str | bytes | int) -> Any:
        """Call a script of background/ for this worker; raise RedisError if Redis refuses."""
        with self.conn_or_acquire() as client:
            return call_script(
                client, script(f"background/{name}").call([], self.owner, *arguments)
            )

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        if not client and self.closed:
            # kombu would look up the address of a closed connection, which ends Celery.
            raise RedisConnectionError("this connection was lost")
        with super().conn_or_acquire(client) as connected:  # type: ignore[misc]
            yield connected

    def _size(self, queue: str) -> int:
        # kombu asks inside MULTI, where a full server refuses every command.
        with self.conn_or_acquire() as client:
            return int(client.llen(queue))

    def _queue_bind(self, *binding: Any) -> None:
        # A refused transaction looks like a lost connection. Redis 6 wraps the refusal of a script
        # in another error.
        refusals: tuple[type[BaseException], ...] = (*self.connection_errors, ResponseError)
        try:
            super()._queue_bind(*binding)  # type: ignore[misc]
        except refusals as error:
            if "OOM" not in str(error) and not self._is_full():
                raise
            # Nothing reads this binding: senders bind for themselves.
            logger.info("queue not bound: Redis is at its maxmemory")

    def _is_full(self) -> bool:
        with self.conn_or_acquire() as client:
            memory = client.info("memory")
        return bool(0 < memory["maxmemory"] <= memory["used_memory"])

    def _brpop_start(self, timeout: int | None = None) -> None:
        if self._full_until > time.monotonic():
            return
        self.qos.settle_again()
        if not self._queue_cycle.consume(len(self.active_queues)):
            return
        self._in_poll = self.client.connection
        self._brpop_sent_at = time.monotonic()
        wait_s = self.connection.brpop_timeout if timeout is None else timeout
        self.client.connection.send_command(
            "BLMOVE",
            keys.BACKGROUND_TASKS,
            keys.background_taken(self.owner),
            "RIGHT",
            "LEFT",
            wait_s or 0,
        )

    def _brpop_read(self, **options: Any) -> bool:
        try:
            try:
                raw = self.client.parse_response(self.client.connection, "BLMOVE", **options)
            except OutOfMemoryError:
                raw = self.call("take")
                if raw is None:
                    self._full_until = time.monotonic() + FULL_S
            except self.connection_errors:
                self.client.connection.disconnect()
                raise
            if raw is None:
                raise Empty
            self._deliver(raw)
            return True
        finally:
            self._in_poll = None

    def _deliver(self, raw: bytes) -> None:
        self.taken = raw
        try:
            message = loads(raw.decode())
        except (ValueError, TypeError, RecursionError):
            message = None
        if not is_message(message):
            logger.warning("message in %s dropped: not a Celery message", keys.BACKGROUND_TASKS)
            self.client.delete(keys.background_taken(self.owner))
            return
        # Scripts may push the same message twice, and a worker may hold both copies.
        message["properties"]["delivery_tag"] = uuid4().hex
        self.connection._deliver(message, keys.BACKGROUND_TASKS)


class Channel(_Moving, kombu_redis.Channel):
    """A channel to one Redis."""

    from_transport_options = (*kombu_redis.Channel.from_transport_options, _OPTION)


class SentinelChannel(_Moving, kombu_redis.SentinelChannel):
    """A channel to the primary that Sentinel names."""

    from_transport_options = (*kombu_redis.SentinelChannel.from_transport_options, _OPTION)


class Transport(kombu_redis.Transport):
    """Replaces kombu's transport for one Redis."""

    Channel = Channel


class SentinelTransport(kombu_redis.SentinelTransport):
    """Replaces kombu's transport for Sentinel."""

    Channel = SentinelChannel


def install() -> None:
    """Use this transport for every connection of this process to Redis.

    It is installed by the URL's scheme, as a socket's URL does not name its transport.
    """
    ours = {
        "redis": f"{__name__}:Transport",
        "rediss": f"{__name__}:Transport",
        "sentinel": f"{__name__}:SentinelTransport",
    }
    kombu_transport.TRANSPORT_ALIASES.update(ours)
    for name in ours:
        vars(kombu_transport)["_transport_cache"].pop(name, None)
