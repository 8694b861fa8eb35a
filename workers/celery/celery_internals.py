"""The private parts of Celery and redis-py that the worker uses, read from 5.7.0 and 8.1.0.

`tests/unit/workers/celery/test_celery_internals.py` fails when one of these names goes.
"""

from __future__ import annotations

import base64
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

from celery.app import trace
from celery.exceptions import CPendingDeprecationWarning
from celery.worker import heartbeat
from celery.worker import state as celery_state
from celery.worker.consumer import Consumer
from celery.worker.control import Panel
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from typing_extensions import override

logger = logging.getLogger(__name__)

#: Seconds before Celery connects again to a server to which it has just lost a connection.
AGAIN_S: Final = 1.0

Command = Callable[..., Any]


def stock_commands() -> dict[str, Command]:
    """Return Celery's own remote-control commands, by name."""
    return dict(Panel.data)


def set_commands(commands: Mapping[str, Command]) -> None:
    """Answer these remote-control commands in place of Celery."""
    Panel.data.update(commands)


def count_active(count: Callable[[], int]) -> None:
    """Add our running jobs to the `active` number of Celery's heartbeats, which Flower shows.

    The heartbeat only takes the length of its module's `active_requests`.
    """
    vars(heartbeat)["active_requests"] = _Active(count)


class _Active:
    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count() + len(celery_state.active_requests)


def count_started(task: str, count: int) -> None:
    """Add to the number of started tasks that `inspect stats` shows."""
    celery_state.all_total_count[0] += count
    celery_state.total_count[task] += count


def event_dispatcher(worker: Any) -> Any:
    """Return the event dispatcher of Celery's consumer; None while it has none."""
    return getattr(getattr(worker, "consumer", None), "event_dispatcher", None)


def take_ticks(clock: Any, count: int) -> int:
    """Advance Celery's logical clock by `count` at once, and return the first of these ticks."""
    with clock.mutex:
        first: int = clock.value + 1
        clock.value += count
    return first


def event_channel(database: int) -> str:
    """Return the channel on which kombu publishes lists of task events in a database."""
    return f"/{database}.celeryev/task.multi"


class ServerDemoted(ReadOnlyError, RedisConnectionError):
    """The server is a replica and takes no writes."""


class ServerFull(OutOfMemoryError, RedisConnectionError):
    """The server is at its maxmemory."""


class ServerUnavailable(ResponseError, RedisConnectionError):
    """The server takes no writes for now. The text has the code, which redis-py removes."""

    def __init__(self, text: str = "", status_code: str | None = None) -> None:
        super().__init__(f"{status_code} {text}", status_code=status_code)


def treat_as_lost_connections() -> None:
    """Have redis-py raise connection errors for some error replies, so that Celery and kombu retry.

    A server that becomes a replica ends kombu's BRPOP with UNBLOCKED and answers the next command
    with READONLY. A full server refuses what kombu writes on connecting with OOM. A server that
    cannot persist, lacks replicas or runs a slow script answers MISCONF, NOREPLICAS or BUSY. Celery
    takes each of them for a bug and ends the worker. The worker must keep running, to continue with
    the new primary and to settle what it holds.
    """
    BaseParser.EXCEPTION_CLASSES.update(
        READONLY=ServerDemoted,
        UNBLOCKED=ServerDemoted,
        OOM=ServerFull,
        MISCONF=ServerUnavailable,
        NOREPLICAS=ServerUnavailable,
        BUSY=ServerUnavailable,
    )


def log_no_rejections() -> None:
    """Have Celery log no traceback for each task that is requeued: what rejects it logs why."""
    policy = trace.log_policy_reject
    vars(trace)["log_policy_reject"] = policy._replace(severity=logging.DEBUG, traceback=0)


def is_message(message: object) -> bool:
    """Return whether Celery can read what a list or a channel held; else kombu or Celery raises."""
    try:
        fields: Any = message
        properties, headers = fields["properties"], fields.get("headers")
        encoding, body = (properties.get("body_encoding") or "").lower(), fields["body"]
        if encoding == "base64":
            body = base64.b64decode(body, validate=True).decode("latin-1")
        is_placed = bool(properties["delivery_tag"]) and isinstance(
            properties["delivery_info"], dict
        )
    except (AttributeError, LookupError, TypeError, ValueError):
        return False
    is_text = isinstance(body, str) and bool(body) and encoding in {"", "utf-8", "base64"}
    return is_placed and is_text and isinstance(headers, dict | None)


def drop_unreadable_messages() -> None:
    """Let kombu drop and log a text that is not a message, instead of ending Celery."""
    loads: Any = vars(kombu_redis)["loads"]
    transport_class: Any = virtual.Transport
    deliver = transport_class._deliver
    if deliver.__module__ == __name__:
        return

    def load(text: str) -> Any:
        try:
            return loads(text)
        except (TypeError, ValueError, RecursionError):
            return None

    def deliver_readable(transport: Any, message: Any, queue: str) -> None:
        if is_message(message):
            deliver(transport, message, queue)
        else:
            logger.warning("message in %s dropped: not a Celery message", queue)

    vars(kombu_redis)["loads"] = load
    transport_class._deliver = deliver_readable


class PatientConsumer(Consumer):
    """Celery's consumer for a server that accepts connections and may refuse writes.

    Celery's own consumer does not close a connection whose first write was refused, and tries again
    at once.
    """

    # celery-types does not have these two.
    amqheartbeat: Any
    hub: Any
    _failed_at = -AGAIN_S

    @override
    def connect(self) -> Any:
        """Connect, and let the event loop read the connection; or raise ConnectionError."""
        # As Celery has it, but for the close.
        connection = self.connection_for_read(heartbeat=self.amqheartbeat)
        try:
            if self.hub:
                transport = connection.transport
                transport.register_with_event_loop(connection.connection, self.hub)
        except BaseException:
            connection.close()
            raise
        return connection

    @override
    def on_connection_error_before_connected(self, exc: Exception) -> None:
        super().on_connection_error_before_connected(exc)
        self._wait()

    @override
    def on_connection_error_after_connected(self, exc: Exception) -> None:
        with warnings.catch_warnings():
            # Celery announces each time that its next version cancels the running tasks here.
            warnings.simplefilter("ignore", CPendingDeprecationWarning)
            super().on_connection_error_after_connected(exc)
        self._wait()

    def _wait(self) -> None:
        if time.monotonic() < self._failed_at + AGAIN_S:
            # In Celery's main thread, which has nothing to do without a connection.
            time.sleep(AGAIN_S)
        self._failed_at = time.monotonic()
