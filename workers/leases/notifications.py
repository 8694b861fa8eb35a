"""Knowing at once that a queue has work, without polling and without moving a payload.

The same connection hears which jobs were cancelled while this worker holds them.

One RESP3 connection with CLIENT TRACKING: the lengths of a queue's lists are read in a pipeline,
and the server then pushes one invalidation when one of them changes, whoever changed it. The push
names the list and wakes the consumer's selector; only its queue is read again, when the consumer is
about to sleep and could take more of it.
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

from headrace.redis.fast_connection import set_push_handlers, socket_of
from headrace.redis.outages import DISCONNECTED, outage_code
from headrace.redis.traffic import TRAFFIC

logger = logging.getLogger(__name__)

#: How often the lengths are read where the server does not push, in seconds.
POLL_S: Final = 0.05
#: How long the consumer waits for lengths, which usually takes a tenth of a millisecond, in
#: seconds. What comes later is read when it comes; what takes longer than the second is an outage.
WATCH_MAX_S: Final = 0.05
ANSWER_MAX_S: Final = 5.0
#: In place of what a push says, which is no reply.
_PUSH: Final = object()


class QueueNotifications:
    """The tracking connection of one worker.

    Args:
        client: the connection is taken from this client's pool; it must speak RESP3.
        lists: what to watch: the lists of each queue.
        channel: what to listen to; "" for none.

    Attributes:
        polls: the server knows no tracking: it pushes nothing, and is to be asked again.
        unwatched: the queues, by their place in `lists`, of whose next change the server will not
            tell: one of their lists has changed, or they were never watched.
    """

    def __init__(
        self, client: redis.Redis, lists: Sequence[Sequence[str]], channel: str = ""
    ) -> None:
        self._client = client
        self._channel = channel
        self._heard: list[bytes] = []
        self._lists = [list(group) for group in lists]
        self._queue_of = {
            name.encode(): index for index, group in enumerate(self._lists) for name in group
        }
        self._connection: Any = None
        self.polls = False
        self.unwatched: set[int] = set()
        self._changed: set[int] = set()
        # Per length that was asked for and is not here yet its queue, and since when that is so.
        self._awaited: deque[int] = deque()
        self._asked_at = 0.0

    def connect(self) -> None:
        """Connect and ask for tracking.

        Raises:
            redis.RedisError, OSError: Redis does not answer.
        """
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
            _raise_if_for_now(error)
            logger.warning(
                "Redis refuses CLIENT TRACKING, so new jobs are looked for every %d ms: %s",
                POLL_S * 1000, error,
            )  # fmt: skip
            return False
        return True

    def _listen(self, connection: Any) -> None:
        connection.send_command("SUBSCRIBE", self._channel)
        try:
            # The confirmation is a push too; so that it is here, something is read behind it.
            connection.send_command("PING")
            connection.read_response()
        except ResponseError as error:
            _raise_if_for_now(error)
            logger.warning(
                "Redis refuses SUBSCRIBE, so a cancel is seen when leases are renewed: %s", error
            )
            connection.read_response()

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.disconnect()
            self._client.connection_pool.release(connection)

    def socket(self) -> Any:
        """The socket, for a selector; readable when a push is there or the connection is gone."""
        return None if self._connection is None else socket_of(self._connection)

    def watch(self, queues: Iterable[int]) -> set[int]:
        """Read the lengths of these queues; from here on their next change is pushed.

        Returns:
            Those that have something, or have changed meanwhile: there is no push to wait for. Of
            a server that takes long they are told by `drain`, when it has answered.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: the connection is closed.
        """
        awaited = set(self._awaited)
        asked = [queue for queue in queues if queue not in awaited]
        if not self.polls:
            self.unwatched.difference_update(asked)
        commands = [("LLEN", name) for queue in asked for name in self._lists[queue]]
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
            self._asked_at = time.monotonic()
        self._awaited.extend(queue for queue in asked for _ in self._lists[queue])
        # Who has not answered the question before is not waited for again.
        return self._read(0.0 if awaited else WATCH_MAX_S)

    def check_timeout(self, now: float) -> None:
        """A server that does not answer at all is an outage: a half-open connection says nothing.

        Raises:
            RedisTimeoutError: it is; the connection is closed.
        """
        if self._awaited and now >= self._asked_at + ANSWER_MAX_S:
            self.close()
            raise RedisTimeoutError(f"no queue's length in {ANSWER_MAX_S:g} s")

    def take_messages(self) -> list[bytes]:
        """What was published on the channel, as far as it was read by `watch` and `drain`."""
        heard, self._heard = self._heard, []
        return heard

    def read_changes(self) -> set[int]:
        """Take the pushes that are there; the queues that have changed, or have something.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: the connection is closed.
        """
        return self._read(0.0)

    def _read(self, wait_s: float) -> set[int]:
        """Read what is there, and wait a little for the lengths that are not."""
        filled, connection = set(), self._connection
        try:
            # A push may be read together with the last reply; no selector would tell of it.
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
        except ResponseError:  # a key of another type: the claim will say so
            return 0

    def _published(self, message: Any) -> Any:
        if _raw(message[0]) == b"message":
            self._heard.append(message[2])
        return _PUSH

    def _invalidated(self, message: Any) -> Any:
        names = message[1]
        if names is None:  # the server forgot all that it was to watch (FLUSHALL)
            queues = set(range(len(self._lists)))
        else:
            queues = {self._queue_of[name] for name in map(_raw, names) if name in self._queue_of}
        self._changed |= queues
        self.unwatched |= queues
        return _PUSH


def _raise_if_for_now(error: ResponseError) -> None:
    """A server that cannot serve at the moment says nothing of what it can do otherwise."""
    if outage_code(error):
        raise RedisConnectionError(f"the server takes no writes: {error}") from error


def _raw(name: bytes | str) -> bytes:
    return name if isinstance(name, bytes) else name.encode()
