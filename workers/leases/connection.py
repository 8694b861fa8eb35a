"""The connection to Redis over which a worker writes: many script calls in one round trip.

A server that does not know the scripts is a different server, and a server that takes no writes is
no primary or cannot persist them. Both count as a broken connection, and the caller decides what to
send again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from headrace.redis.fast_connection import TRAFFIC, pack_all, socket_of
from headrace.redis.outages import DISCONNECTED, outage_code
from headrace.redis.scripts import NAMES, Command, Script, script
from workers.jobs.leased_job import NEVER

logger = logging.getLogger(__name__)

#: How many writes may be unanswered: that on which Redis works, and the next.
IN_FLIGHT_MAX: Final = 2
#: A reply that takes longer than this counts as an outage.
ANSWER_MAX_S: Final = 5.0

Reply = Any
#: Takes the reply to a command, and the time.
Handle = Callable[[Any, float], None]


class PooledConnection:
    """A connection that is taken from a client's pool, and given back when it is closed."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._connection: Any = None

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.disconnect()
            self._client.connection_pool.release(connection)

    def socket(self) -> Any:
        """Return the socket for a selector, or None: readable when something came or it broke."""
        return None if self._connection is None else socket_of(self._connection)


class PipelinedConnection(PooledConnection):
    """Sends commands in one write and reads their replies.

    A lost connection raises RedisConnectionError, RedisTimeoutError or OSError. It is then closed,
    and the outcome of every command is unknown.

    Args:
        further: the scripts of commands that are not the core's.
    """

    def __init__(self, client: redis.Redis, further: Sequence[Script] = ()) -> None:
        super().__init__(client)
        self._scripts = [*map(script, NAMES), *further]

    @property
    def connected(self) -> bool:
        """Whether the connection is open and the last exchange succeeded."""
        return self._connection is not None

    def connect(self) -> None:
        """Connect, and load the scripts."""
        self._connection = self._client.connection_pool.get_connection()
        try:
            self._load_scripts()
        except BaseException:
            self.close()
            raise

    def more(self) -> bool:
        """Return whether more can be read now; replies that were read ahead are in no socket."""
        return bool(self._connection.can_read(0))

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands in one write, without waiting for their replies."""
        connection = self._connection
        if connection is None:
            raise RedisConnectionError("not connected")
        try:
            # redis-py would write each long command separately, and check each argument.
            connection.send_packed_command([pack_all(commands)])
        except DISCONNECTED:
            self.close()
            raise

    def receive(self, commands: Sequence[Command]) -> list[Reply]:
        """Return all replies, errors too, to the oldest unanswered commands; block until then."""
        if self._connection is None:
            raise RedisConnectionError("not connected")
        try:
            replies = self._read(len(commands))
            if any(isinstance(reply, NoScriptError) for reply in replies):
                # A failover has put another server in the place of the first.
                raise RedisConnectionError("the server does not know the scripts any more")
        except DISCONNECTED:
            self.close()
            raise
        return replies

    def _load_scripts(self) -> None:
        commands = [known.load_command() for known in self._scripts]
        self.send(commands)
        for reply in self.receive(commands):
            if isinstance(reply, ResponseError):
                raise reply

    def _read(self, count: int) -> list[Reply]:
        read = self._connection.read_response
        replies = []
        for _ in range(count):
            try:
                replies.append(read(disable_decoding=True))
            except ResponseError as error:
                if outage_code(error):
                    # redis-py has closed the connection already for some of these.
                    raise RedisConnectionError(f"the server takes no writes: {error}") from error
                replies.append(error)
        return replies


@dataclass(frozen=True, slots=True)
class _Call:
    command: Command
    handle: Handle
    refused: Callable[[], None]
    resend: bool


class Outbox:
    """Calls to Redis: gathered, sent in one write, and resent after an outage.

    A lost connection raises as in `PipelinedConnection`. The caller connects and closes it.

    Attributes:
        reply_due_at: when the oldest unanswered write counts as lost.
    """

    def __init__(self, connection: PipelinedConnection) -> None:
        self._connection = connection
        self._waiting: list[_Call] = []
        # The unanswered writes, each with the time when it was sent.
        self._in_flight: deque[tuple[float, list[_Call]]] = deque()
        self.reply_due_at = NEVER

    @property
    def busy(self) -> bool:
        """Whether calls wait to be sent or for a reply."""
        return bool(self._waiting or self._in_flight)

    def add(
        self,
        command: Command,
        handle: Handle = lambda _reply, _now: None,
        refused: Callable[[], None] = lambda: None,
        *,
        resend: bool = False,
    ) -> None:
        """Add a call to the next write.

        `refused` is called if Redis replies with an error. With `resend` the call must not be lost:
        it is sent again after an outage.
        """
        self._waiting.append(_Call(command, handle, refused, resend))

    def flush(self, now: float) -> None:
        """Send all calls in one write, unless enough writes are unanswered.

        Meanwhile more calls gather for the next write, and the worker goes on.
        """
        if len(self._in_flight) >= IN_FLIGHT_MAX or not self._waiting:
            return
        sent, self._waiting = self._waiting, []
        self._in_flight.append((now, sent))
        TRAFFIC.round_trips += 1
        if len(self._in_flight) == 1:
            self.reply_due_at = now + ANSWER_MAX_S
        self._connection.send([call.command for call in sent])

    def receive(self, now: float) -> float | None:
        """Handle the replies to the oldest write; return the seconds they took, or None."""
        if not self._in_flight:
            self._connection.more()  # readable without a pending call: the server has hung up
            return None
        sent_at, answered = self._in_flight[0]
        replies = self._connection.receive([call.command for call in answered])
        self._in_flight.popleft()
        self.reply_due_at = now + ANSWER_MAX_S if self._in_flight else NEVER
        for call, reply in zip(answered, replies, strict=True):
            if isinstance(reply, ResponseError):
                # A script fails before its first write, so nothing is half done. The jobs of the
                # call are no longer held: their leases expire, and they run again.
                TRAFFIC.errors += 1
                logger.error("Redis refused a call: %s", reply)
                call.refused()
            else:
                call.handle(reply, now)
        return now - sent_at

    @property
    def more(self) -> bool:
        """Whether the replies to another write have come."""
        return bool(self._in_flight) and self._connection.more()

    def reset(self) -> None:
        """Drop all calls but those that must be resent, because the connection was lost."""
        unanswered = [call for _, sent in self._in_flight for call in sent]
        self._waiting = [call for call in (*unanswered, *self._waiting) if call.resend]
        self._in_flight.clear()
        self.reply_due_at = NEVER
