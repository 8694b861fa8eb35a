"""Knowing at once that a queue has work, without polling and without moving a payload.

One RESP3 connection with CLIENT TRACKING: the lengths of the lists are read in a pipeline, and the
server then pushes one invalidation when any of them changes, whoever changed it. The push wakes the
consumer's selector; nothing is read again until the consumer is about to sleep once more.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import redis
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    ResponseError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

logger = logging.getLogger(__name__)

#: How often the lengths are read where the server does not push, in seconds.
POLL_S: Final = 0.05
DISCONNECTED: Final = (RedisConnectionError, RedisTimeoutError, OSError)


class Wake:
    """The tracking connection of one worker.

    Args:
        client: the connection is taken from this client's pool; it must speak RESP3.
        keys: the lists and sorted sets to watch, as (key, command that reads its length).
    """

    def __init__(self, client: redis.Redis, keys: list[tuple[str, str]]) -> None:
        self._client = client
        self._commands = [(command, key) for key, command in keys]
        self._connection: Any = None
        self._armed = False
        #: The server knows no tracking: nothing is pushed, and the lengths are to be read again.
        self.polls = False

    @property
    def armed(self) -> bool:
        """Whether the server will push at the next change."""
        return self._armed

    def connect(self) -> None:
        """Connect and ask for tracking.

        Raises:
            redis.RedisError, OSError: Redis does not answer.
        """
        connection: Any = self._client.connection_pool.get_connection()
        try:
            connection._parser.set_invalidation_push_handler(self._invalidated)
            self.polls = not self._track(connection)
        except BaseException:
            connection.disconnect()
            self._client.connection_pool.release(connection)
            raise
        self._connection = connection
        self._armed = False

    @staticmethod
    def _track(connection: Any) -> bool:
        connection.send_command("CLIENT", "TRACKING", "ON")
        try:
            connection.read_response()
        except ResponseError as error:
            logger.warning(
                "Redis refuses CLIENT TRACKING, so new jobs are looked for every %d ms: %s",
                POLL_S * 1000, error,
            )  # fmt: skip
            return False
        return True

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.disconnect()
            self._client.connection_pool.release(connection)
        self._armed = False

    def socket(self) -> Any:
        """The socket, for a selector; readable when a push is there or the connection is gone."""
        return None if self._connection is None else self._connection._sock

    def arm(self) -> list[int]:
        """Read every length; from here on the next change is pushed.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: the connection is closed.
        """
        try:
            self._armed = not self.polls
            connection = self._connection
            connection.send_packed_command(connection.pack_commands(self._commands))
            lengths = [self._length(connection) for _ in self._commands]
        except DISCONNECTED:
            self.close()
            raise
        # A push may have been read together with the last reply; no selector would tell of it.
        self.drain()
        return lengths

    def _length(self, connection: Any) -> int:
        try:
            return int(connection.read_response())
        except ResponseError:  # a key of another type: the claim will say so
            return 0

    def drain(self) -> bool:
        """Take the pushes that are there; whether any key changed since `arm`.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: the connection is closed.
        """
        try:
            while self._connection.can_read(0):
                self._connection.read_response(push_request=True)
        except DISCONNECTED:
            self.close()
            raise
        return not self._armed

    def _invalidated(self, message: Any) -> Any:
        self._armed = False
        return message
