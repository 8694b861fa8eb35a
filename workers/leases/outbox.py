"""The calls of a worker to Redis: gathered, sent in one write, and resent after an outage."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import ResponseError

from headrace.redis.scripts import Command
from headrace.redis.traffic import TRAFFIC
from workers.leases.connection import PipelinedConnection

logger = logging.getLogger(__name__)

#: How many writes may be unanswered: one that Redis works on, and the next one.
IN_FLIGHT_MAX: Final = 2
#: A reply that takes longer than this counts as an outage.
ANSWER_MAX_S: Final = 5.0
NEVER: Final = float("inf")

Handle = Callable[[Any, float], None]


def _ignore(_reply: Any, _now: float) -> None:
    pass


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Call:
    command: Command
    handle: Handle
    refused: Callable[[], None]
    resend: bool


class Outbox:
    """Calls that wait to be sent, and calls that wait for a reply.

    Args:
        connection: the connection; the caller connects and closes it.

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
        handle: Handle = _ignore,
        refused: Callable[[], None] = _nothing,
        *,
        resend: bool = False,
    ) -> None:
        """Add a call to the next write.

        Args:
            command: the call.
            handle: called with the reply and the time.
            refused: called if Redis replies with an error.
            resend: the call must not be lost: it is sent again after an outage.
        """
        self._waiting.append(_Call(command, handle, refused, resend))

    def flush(self, now: float) -> None:
        """Send all calls in one write, unless enough writes are unanswered.

        Meanwhile more calls gather for the next write, and the worker goes on.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: the connection is lost.
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
        """Read the replies to the oldest write, and handle them.

        Returns:
            How many seconds they took; None if no write is unanswered.

        Raises:
            RedisConnectionError, RedisTimeoutError, OSError: the connection is lost.
        """
        if not self._in_flight:
            self._connection.more()  # readable without a pending call: the server has hung up
            return None
        sent_at, answered = self._in_flight[0]
        replies = self._connection.receive([call.command for call in answered])
        self._in_flight.popleft()
        self.reply_due_at = now + ANSWER_MAX_S if self._in_flight else NEVER
        for call, reply in zip(answered, replies, strict=True):
            if isinstance(reply, ResponseError):
                self._refused(call, reply)
            else:
                call.handle(reply, now)
        return now - sent_at

    @property
    def more(self) -> bool:
        """Whether the replies to another write have come.

        Raises:
            RedisConnectionError, OSError: the server closed the connection.
        """
        return bool(self._in_flight) and self._connection.more()

    def reset(self) -> None:
        """Drop all calls but those that must be resent, because the connection was lost."""
        unanswered = [call for _, sent in self._in_flight for call in sent]
        self._waiting = [call for call in (*unanswered, *self._waiting) if call.resend]
        self._in_flight.clear()
        self.reply_due_at = NEVER

    @staticmethod
    def _refused(call: _Call, error: ResponseError) -> None:
        # A script fails before its first write, so nothing is half done. The jobs of the call are
        # no longer held: their leases expire, and they run again.
        TRAFFIC.errors += 1
        logger.error("Redis refused a call: %s", error)
        call.refused()
