"""Notifications from Redis: queues that have changed, and held jobs that were cancelled.

They come over a RESP3 connection with CLIENT TRACKING. The lengths of a queue's lists are read in a
pipeline, and the server then pushes an invalidation when any of them changes. The push names the
list and wakes the consumer's selector. A queue is watched again when the consumer is about to sleep
and has room for more of its jobs. Nothing is polled, and no payload is moved.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from headrace.redis.fast_connection import TRAFFIC, set_push_handlers
from headrace.redis.outages import DISCONNECTED, outage_code
from workers.leases.connection import PooledConnection

logger = logging.getLogger(__name__)

#: How often the lengths are read if the server does not push, in seconds.
POLL_S: Final = 0.05
#: How long the consumer waits for lengths, in seconds; usually it takes 0.1 ms. Later replies are
#: read when they come. After ANSWER_MAX_S a missing reply counts as an outage.
WATCH_MAX_S: Final = 0.05
ANSWER_MAX_S: Final = 5.0
#: Returned by the push handlers, because a push is no reply.
_PUSH: Final = object()


class QueueNotifications(PooledConnection):
    """The notification connection of a worker.

    The client must use RESP3. Cancels come on `channel`, unless it is empty.

    Attributes:
        polls: the server does not support tracking, so lengths must be read every `POLL_S`.
        unwatched: the queues, by their place in `lists`, whose next change is not pushed: a list
            of theirs has changed, or they were never watched.
    """

    def __init__(
        self, client: redis.Redis, lists: Sequence[Sequence[str]], channel: str = ""
    ) -> None:
        super().__init__(client)
        self._channel = channel
        self._messages: list[bytes] = []
        self._lists: list[list[str]] = []
        self.polls = False
        self.unwatched: set[int] = set()
        self.set_lists(0, lists)
        self._changed: set[int] = set()
        # The queue of each requested length that has not come, and when they were requested.
        self._awaited: deque[int] = deque()
        self._requested_at = 0.0

    def set_lists(self, first: int, lists: Sequence[Sequence[str]]) -> None:
        """Set the lists of these places and those behind, or add them; they are unwatched then."""
        self._lists[first : first + len(lists)] = map(list, lists)
        self._queue_of = {
            name.encode(): index for index, group in enumerate(self._lists) for name in group
        }
        self.unwatched.update(range(first, first + len(lists)))

    def connect(self) -> None:
        """Connect, turn tracking on and subscribe; raise RedisError or OSError without Redis."""
        connection: Any = self._client.connection_pool.get_connection()
        try:
            set_push_handlers(connection, self._invalidated, self._published)
            self.polls = not self._track(connection)
            if self._channel:
                self._listen(connection)
        except BaseException:
            connection.disconnect()
            self._client.connection_pool.release(connection)
            raise
        self._connection = connection
        self._awaited.clear()
        self.unwatched = set(range(len(self._lists)))
        self._changed = set()

    @staticmethod
    def _track(connection: Any) -> bool:
        connection.send_command("CLIENT", "TRACKING", "ON")
        try:
            connection.read_response()
        except ResponseError as error:
            _raise_if_temporary(error)
            logger.warning(
                "Redis refuses CLIENT TRACKING, so queues are polled every %d ms: %s",
                POLL_S * 1000, error,
            )  # fmt: skip
            return False
        return True

    def _listen(self, connection: Any) -> None:
        connection.send_command("SUBSCRIBE", self._channel)
        try:
            # The confirmation is a push; the reply behind it proves that it has come.
            connection.send_command("PING")
            connection.read_response()
        except ResponseError as error:
            _raise_if_temporary(error)
            logger.warning(
                "Redis refuses SUBSCRIBE, so cancels are found when leases are renewed: %s", error
            )
            connection.read_response()

    def watch(self, queues: Iterable[int]) -> set[int]:
        """Read the lengths of these queues; from now on their next change is pushed.

        Returns:
            The queues that have messages or have changed meanwhile. If the server is slow,
            `read_changes` returns them when it has replied.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: the connection is closed.
        """
        awaited = set(self._awaited)
        wanted = [queue for queue in queues if queue not in awaited]
        if not self.polls:
            self.unwatched.difference_update(wanted)
        commands = [("LLEN", name) for queue in wanted for name in self._lists[queue]]
        if not commands:
            return set()
        connection = self._connection
        TRAFFIC.round_trips += 1
        try:
            connection.send_packed_command(connection.pack_commands(commands))
        except DISCONNECTED:
            self.close()
            raise
        if not awaited:
            self._requested_at = time.monotonic()
        self._awaited.extend(queue for queue in wanted for _ in self._lists[queue])
        # The consumer waits only once for a slow server.
        return self._read(0.0 if awaited else WATCH_MAX_S)

    def check_timeout(self, now: float) -> None:
        """Close, and raise RedisTimeoutError, if a reply is overdue: half-open connections hang."""
        if self._awaited and now >= self._requested_at + ANSWER_MAX_S:
            self.close()
            raise RedisTimeoutError(f"no queue's length in {ANSWER_MAX_S:g} s")

    def take_messages(self) -> list[bytes]:
        """Return the channel's messages that `watch` and `read_changes` have read."""
        messages, self._messages = self._messages, []
        return messages

    def read_changes(self) -> set[int]:
        """Read the pushes that have come; return the queues that have changed or have messages.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: the connection is closed.
        """
        return self._read(0.0)

    def _read(self, wait_s: float) -> set[int]:
        """Read what has come, and wait up to `wait_s` for missing lengths."""
        filled, connection = set(), self._connection
        try:
            # A push may be read together with the last reply; the selector would not report it.
            while connection.can_read(wait_s if self._awaited else 0.0):
                length = self._reply(connection)
                if length is _PUSH:
                    continue
                queue = self._awaited.popleft()
                if length:
                    filled.add(queue)
        except DISCONNECTED:
            self.close()
            raise
        changed, self._changed = self._changed, set()
        return filled if self.polls else filled | changed

    @staticmethod
    def _reply(connection: Any) -> Any:
        try:
            return connection.read_response(push_request=True)
        except ResponseError:  # a key of another type; the claim reports it
            return 0

    def _published(self, message: Any) -> Any:
        if _raw(message[0]) == b"message":
            self._messages.append(message[2])
        return _PUSH

    def _invalidated(self, message: Any) -> Any:
        names = message[1]
        if names is None:  # the server has dropped all keys (FLUSHALL)
            queues = set(range(len(self._lists)))
        else:
            queues = {self._queue_of[name] for name in map(_raw, names) if name in self._queue_of}
        self._changed |= queues
        self.unwatched |= queues
        return _PUSH


def _raise_if_temporary(error: ResponseError) -> None:
    """Raise if the error is temporary, because it does not show what the server supports."""
    if outage_code(error):
        raise RedisConnectionError(f"the server takes no writes: {error}") from error


def _raw(name: bytes | str) -> bytes:
    return name if isinstance(name, bytes) else name.encode()
