"""Task events as Celery's monitors read them, collected into one message. Independent of Redis.

One message keeps their order. In separate messages a `started` could overtake its `received`, and
Flower would show a job without a name.
"""

from __future__ import annotations

import binascii
import os
import uuid
from collections.abc import Callable
from typing import Final

import msgspec
from celery.utils.time import utcoffset

from headrace.jobs.encoding import kombu_size

RESULT_MAX_CHARS: Final = 128
_encode: Final = msgspec.json.encode


class TaskEvent(msgspec.Struct, tag_field="type", gc=False):
    """The fields of every event.

    Attributes:
        uuid: the job's id.
        hostname: the worker's node name.
        timestamp: seconds since 1970.
        utcoffset: hours by which local time is behind UTC, as Celery counts them.
        pid: the worker's pid.
        clock: Celery's logical clock, set when the event is sent.
    """

    uuid: str
    hostname: str
    timestamp: float
    utcoffset: float
    pid: int
    clock: int


class Received(TaskEvent, tag="task-received"):
    """A worker has claimed the job."""

    name: str
    args: str
    kwargs: str
    root_id: str
    parent_id: str | None
    retries: int
    eta: str | None
    expires: str | None


class Started(TaskEvent, tag="task-started"):
    """The job's batch was sent to a model process."""


class Succeeded(TaskEvent, tag="task-succeeded"):
    """The job ended with a result."""

    result: str
    runtime: float | None


class Failed(TaskEvent, tag="task-failed"):
    """The job ended with an error."""

    exception: str
    traceback: str | None


class Retried(TaskEvent, tag="task-retried"):
    """The job waits for another attempt."""

    exception: str
    traceback: str | None


class Revoked(TaskEvent, tag="task-revoked"):
    """The job was cancelled."""

    terminated: bool = False
    signum: str | None = None
    expired: bool = False


Head = tuple[str, str, float, float, int, int]


class TaskEventLog:
    """The unsent events of one worker.

    Args:
        hostname: Celery's node name, such as gpu0@host.
        ticks: advances Celery's logical clock by a count and returns the first of these ticks.

    Attributes:
        events: the events in their order.
    """

    def __init__(self, hostname: str, ticks: Callable[[int], int]) -> None:
        self.events: list[TaskEvent] = []
        self._hostname = hostname
        self._ticks = ticks
        self._utcoffset = utcoffset()
        self._pid = os.getpid()

    def head(self, job_id: str, epoch_s: float) -> Head:
        """Return the fields of `TaskEvent` for an event."""
        return (job_id, self._hostname, epoch_s, self._utcoffset, self._pid, 0)

    def message(self) -> bytes:
        """Remove all events, and return them as a message for kombu's channel of event lists."""
        events, self.events = self.events, []
        for clock, event in enumerate(events, self._ticks(len(events))):
            event.clock = clock
        self._utcoffset = utcoffset()
        rest = {
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"hostname": self._hostname},
            "properties": {
                "delivery_mode": 1,
                "delivery_info": {"exchange": "celeryev", "routing_key": "task.multi"},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": str(uuid.uuid4()),
            },
        }
        # Base64 needs no escaping, so the body is not encoded again.
        body = binascii.b2a_base64(_encode(events), newline=False)
        return b'{"body":"%s",%s' % (body, _encode(rest)[1:])


class _Meta(msgspec.Struct):
    result: msgspec.Raw
    traceback: str | None = None


_META: Final = msgspec.json.Decoder(_Meta)


def result_text(meta: bytes, content_type: str) -> str:
    """Return the beginning of a result's JSON, or the type and size of a result that is not JSON.

    Args:
        meta: the Celery result; empty if the client ignores results.
        content_type: the type of a result that is not JSON; otherwise empty.
    """
    if not meta:
        return ""
    raw = memoryview(_META.decode(meta).result)
    if content_type:
        return f"<{content_type}, {kombu_size(raw)} bytes>"
    # A character has at most four bytes, so more are never shown.
    text = str(raw[: RESULT_MAX_CHARS * 4], "utf-8", "replace")
    return text if len(text) <= RESULT_MAX_CHARS else text[: RESULT_MAX_CHARS - 1] + "…"


def traceback_text(meta: bytes) -> str | None:
    """Return the traceback in a Celery result; None without one."""
    return _META.decode(meta).traceback if meta else None
