"""kombu's Redis transport for the background worker, where nothing taken is in nobody's hands.

kombu pops a message and then notes it as unacknowledged: who is killed in between loses it. What is
noted comes back after a fixed time, whether or not its worker lives. Here a message is moved into a
list of its worker, then noted as that worker's; it goes back when the worker is gone, and only
then. `headrace/redis/scripts/background/requeue_dead.lua` gives back.
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

#: After Redis has refused to move a message (at its maxmemory, say) it is asked again so late.
REFUSED_S: Final = 1.0

#: What the transport option `owner` becomes on a channel; "" for one that only sends.
_OPTION: Final = "owner"


class QoS(kombu_redis.QoS):
    """Notes what is not acknowledged under the name of its worker."""

    channel: Any
    #: What is left of a lost connection cannot be said over it; the account gives it back.
    restore_at_shutdown = False

    @override
    def append(self, message: Any, delivery_tag: str) -> None:
        owner = self.channel.owner
        with self.pipe_or_acquire() as pipe:
            pipe.hset(keys.errands_held(owner), delivery_tag, self.channel.taken)
            pipe.delete(keys.errands_taken(owner))
            pipe.execute()
        virtual.QoS.append(self, message, delivery_tag)

    @override
    def ack(self, delivery_tag: str) -> None:
        if self.channel.closed:
            # kombu would look for the server's address and find none, which Celery dies of.
            raise RedisConnectionError("the connection that brought this errand was lost")
        with self.channel.conn_or_acquire() as client:
            client.hdel(keys.errands_held(self.channel.owner), delivery_tag)
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
        held = keys.errands_held(self.channel.owner)

        def restore(pipe: Any) -> None:
            raw = pipe.hget(held, tag)
            pipe.multi()
            if raw is not None:
                pipe.hdel(held, tag)
                (pipe.lpush if leftmost else pipe.rpush)(keys.ERRANDS, raw)

        with self.channel.conn_or_acquire(client) as connected:
            connected.transaction(restore, held)

    @override
    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Nothing comes back by time alone."""


class _Moving:
    """What a channel of either kind does otherwise."""

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
            "BLMOVE", keys.ERRANDS, keys.errands_taken(self.owner), "RIGHT", "LEFT", wait_s or 0
        )

    def _brpop_read(self, **options: Any) -> bool:
        try:
            try:
                raw = self.client.parse_response(self.client.connection, "BLMOVE", **options)
            except self.connection_errors:
                self.client.connection.disconnect()
                raise
            except ResponseError as error:
                # In its main thread, which has nothing else to do until Redis takes writes again.
                time.sleep(REFUSED_S)
                self.client.connection.disconnect()
                raise RedisConnectionError(f"Redis refuses: {error}") from error
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
            logger.exception("dropped: what stood in %s is no message of Celery", keys.ERRANDS)
            self.client.delete(keys.errands_taken(self.owner))
            return
        # Scripts may push the same message twice, and both may be held at a time.
        message["properties"]["delivery_tag"] = uuid4().hex
        self.connection._deliver(message, keys.ERRANDS)


class Channel(_Moving, kombu_redis.Channel):
    """A channel to one Redis."""

    from_transport_options = (*kombu_redis.Channel.from_transport_options, _OPTION)


class SentinelChannel(_Moving, kombu_redis.SentinelChannel):
    """A channel to the primary that Sentinel names."""

    from_transport_options = (*kombu_redis.SentinelChannel.from_transport_options, _OPTION)


class Transport(kombu_redis.Transport):
    """In the place of kombu's for one Redis."""

    Channel = Channel


class SentinelTransport(kombu_redis.SentinelTransport):
    """In the place of kombu's for Sentinel."""

    Channel = SentinelChannel


def install() -> None:
    """Let every connection of this process to Redis be of this transport.

    By the URL's scheme, as a socket's URL says nothing else of its transport.
    """
    ours = {
        "redis": f"{__name__}:Transport",
        "rediss": f"{__name__}:Transport",
        "sentinel": f"{__name__}:SentinelTransport",
    }
    kombu_transport.TRANSPORT_ALIASES.update(ours)
    for name in ours:
        vars(kombu_transport)["_transport_cache"].pop(name, None)
