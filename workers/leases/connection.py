"""The connection to Redis over which a worker writes: many script calls in one round trip.

A server that does not know the scripts is a different server, and one that takes no writes is no
primary or cannot persist them. Both count as a broken connection, and the caller decides what to
send again.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

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
        """Whether the connection is open and the last exchange succeeded."""
        return self._connection is not None

    def connect(self) -> None:
        """Connect, and load the scripts.

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
        """Close the connection, if it is open."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.disconnect()
            self._client.connection_pool.release(connection)

    def socket(self) -> Any:
        """Return the socket for a selector: readable when a reply came or the connection broke."""
        return socket_of(self._connection)

    def more(self) -> bool:
        """Return whether more can be read now; replies that were read ahead are in no socket.

        Raises:
            RedisConnectionError, OSError: the server closed the connection.
        """
        return bool(self._connection.can_read(0))

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands and return their replies; the error of one command is its reply.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: the connection is closed, and the
                outcome of every command is unknown.
        """
        self.send(commands)
        return self.receive(commands)

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands in one write, without waiting for their replies.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: as for `exchange`.
        """
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
        """Return the replies to the oldest unanswered commands; block until all have come.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: as for `exchange`.
        """
        if self._connection is None:
            raise RedisConnectionError("not connected")
        try:
            replies = self._read(len(commands))
            for error in [reply for reply in replies if isinstance(reply, ResponseError)]:
                if isinstance(error, NoScriptError):
                    # A failover has put another server in the place of the first one.
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
                    # redis-py has closed the connection already for some of these.
                    raise RedisConnectionError(f"the server takes no writes: {error}") from error
                replies.append(error)
        return replies


class BackgroundConnect:
    """One attempt to connect, in a thread, because it takes seconds if Redis does not answer.

    Args:
        connect: connects or raises; nothing else uses its connections until the attempt is over.
        wake_fd: a byte is written to it when the attempt is over.

    Attributes:
        error: why the attempt failed; None if it succeeded.
    """

    def __init__(self, connect: Callable[[], None], wake_fd: int) -> None:
        self.error: Exception | None = None
        self._connect = connect
        self._wake_fd = wake_fd
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._abandoned = False
        # A daemon, so that a worker stops without waiting for a server that does not answer.
        threading.Thread(target=self._try, name="headrace-connect", daemon=True).start()

    @property
    def over(self) -> bool:
        """Whether the attempt has succeeded or failed."""
        return self._over.is_set()

    def abandon(self) -> None:
        """Write nothing to `wake_fd` any more, because it is about to be closed."""
        with self._lock:
            self._abandoned = True

    def _try(self) -> None:
        try:
            self._connect()
        except Exception as error:  # noqa: BLE001 - the consumer checks it
            self.error = error
        self._over.set()
        with self._lock:
            if not self._abandoned:
                os.write(self._wake_fd, b"x")


def watch_sockets(
    selector: selectors.BaseSelector, watched: list[Any], found: Iterable[Any]
) -> list[Any]:
    """Watch the sockets in `found`, except None, instead of those in `watched`; return them."""
    sockets = [sock for sock in found if sock is not None]
    for old in [old for old in watched if old not in sockets]:
        selector.unregister(old)
    for new in [new for new in sockets if new not in watched]:
        selector.register(new, selectors.EVENT_READ)
    return sockets
