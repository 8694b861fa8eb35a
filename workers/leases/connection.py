"""One connection to Redis for all that a worker writes: many script calls, one round trip.

Knows scripts and connections, not what the calls are for. A server that does not know the scripts
any more is another server, and one that takes no writes for now is no primary or cannot keep what
it is told: both count as a broken connection, after which the caller decides what to say again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    NoScriptError,
    ResponseError,
)

from headrace.redis.fast_connection import pack_all, socket_of
from headrace.redis.outages import DISCONNECTED, outage_code
from headrace.redis.scripts import NAMES, Command, script

logger = logging.getLogger(__name__)

Reply = Any


class PipelinedConnection:
    """Sends commands in one write and reads their replies.

    Args:
        client: the connection is taken from this client's pool.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._connection: Any = None
        self._scripts = [script(name) for name in NAMES]

    @property
    def connected(self) -> bool:
        """Whether the last exchange left the connection in order."""
        return self._connection is not None

    def connect(self) -> None:
        """Connect, and make the scripts known.

        Raises:
            redis.RedisError, OSError: Redis does not answer.
        """
        connection = self._client.connection_pool.get_connection()
        try:
            self._connection = connection
            self._load_scripts()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drop the connection; the next call wants `connect` first."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.disconnect()
            self._client.connection_pool.release(connection)

    def socket(self) -> Any:
        """For selectors: readable when a reply is there or the connection is gone."""
        return socket_of(self._connection)

    def more(self) -> bool:
        """Whether more can be read now; what was read ahead is in no socket any more.

        Raises:
            RedisConnectionError, OSError: the server hung up.
        """
        return bool(self._connection.can_read(0))

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands and read their replies; an error of one command stands at its place.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: the outcome of every command is
                unknown; the connection is closed.
        """
        self.send(commands)
        return self.receive(commands)

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands in one write, without waiting for what Redis says.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: as for `exchange`.
        """
        connection = self._connection
        if connection is None:
            raise RedisConnectionError("not connected")
        try:
            # One write: redis-py would send each long command by itself, and look at each argument.
            connection.send_packed_command([pack_all(commands)])
        except DISCONNECTED:
            self.close()
            raise

    def receive(self, commands: Sequence[Command]) -> list[Reply]:
        """Read the replies to the oldest commands that are unanswered; blocks until all are there.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: as for `exchange`.
        """
        if self._connection is None:
            raise RedisConnectionError("not connected")
        try:
            replies = self._read(len(commands))
            for error in [reply for reply in replies if isinstance(reply, ResponseError)]:
                if isinstance(error, NoScriptError):
                    # The server is another one than at connect: a failover under our feet.
                    raise RedisConnectionError("the server does not know the scripts any more")
        except DISCONNECTED:
            self.close()
            raise
        return replies

    def _load_scripts(self) -> None:
        for reply in self.exchange([known.load_command() for known in self._scripts]):
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
                    # With some of these the connection is closed already.
                    raise RedisConnectionError(f"the server takes no writes: {error}") from error
                replies.append(error)
        return replies
