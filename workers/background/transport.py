"""kombu's Redis transport as a reliable queue: a popped message always has an owner.

kombu pops a message and then records it as unacknowledged. A worker that is killed in between loses
the message. A recorded message is redelivered after a fixed time, even if its worker lives. Here a
message is moved into a list of its worker and then recorded as held by it. It is requeued only when
that worker is dead (`headrace/redis/scripts/background/requeue_dead.lua`).

This is the one file that depends on kombu's private names; read from kombu 5.7.0.
`tests/unit/workers/celery/test_celery_internals.py` fails when one of them goes.
"""

from __future__ import annotations

import logging
import time
from queue import Empty
from typing import Any, Final
from uuid import uuid4

from kombu import transport as kombu_transport
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import loads
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from typing_extensions import override

from headrace.redis import keys

logger = logging.getLogger(__name__)

#: Seconds to wait after Redis refused to move a message, for example at its maxmemory.
REFUSED_S: Final = 1.0

#: The transport option with the worker's name; "" on a channel that only sends.
_OPTION: Final = "owner"


class QoS(kombu_redis.QoS):
    """Records unacknowledged messages under the name of their worker."""

    channel: Any
    #: A lost connection cannot restore its messages; the liveness step requeues them.
    restore_at_shutdown = False

    @override
    def append(self, message: Any, delivery_tag: str) -> None:
        owner = self.channel.owner
        with self.pipe_or_acquire() as pipe:
            pipe.hset(keys.background_held(owner), delivery_tag, self.channel.taken)
            pipe.delete(keys.background_taken(owner))
            pipe.execute()
        virtual.QoS.append(self, message, delivery_tag)

    @override
    def ack(self, delivery_tag: str) -> None:
        if self.channel.closed:
            # kombu would look up the address of a closed connection, which ends Celery.
            raise RedisConnectionError("the connection that delivered this task was lost")
        with self.channel.conn_or_acquire() as client:
            client.hdel(keys.background_held(self.channel.owner), delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    @override
    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self.restore_by_tag(delivery_tag, leftmost=True)
            virtual.QoS.ack(self, delivery_tag)
        else:
            self.ack(delivery_tag)

    @override
    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        held = keys.background_held(self.channel.owner)

        def restore(pipe: Any) -> None:
            raw = pipe.hget(held, tag)
            pipe.multi()
            if raw is not None:
                pipe.hdel(held, tag)
                (pipe.lpush if leftmost else pipe.rpush)(keys.BACKGROUND_TASKS, raw)

        with self.channel.conn_or_acquire(client) as connected:
            connected.transaction(restore, held)

    @override
    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Do nothing, as no message is requeued by time alone."""


class _Moving:
    """What both kinds of channel do differently from kombu's."""

    QoS: Any = QoS
    from_transport_options: tuple[str, ...]
    owner = ""
    taken = b""
    brpop_timeout: int
    client: Any
    connection: Any
    connection_errors: tuple[type[BaseException], ...]
    _in_poll: Any
    _brpop_sent_at: float
    _queue_cycle: Any
    active_queues: Any

    def _brpop_start(self, timeout: int | None = None) -> None:
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
            except self.connection_errors:
                self.client.connection.disconnect()
                raise
            except ResponseError as error:
                # In Celery's main thread, which is idle until Redis accepts writes again.
                time.sleep(REFUSED_S)
                self.client.connection.disconnect()
                raise RedisConnectionError(f"Redis refused to move a message: {error}") from error
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
            message["properties"]["delivery_tag"]
        except (ValueError, TypeError, LookupError):
            logger.exception("message in %s dropped: not a Celery message", keys.BACKGROUND_TASKS)
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
