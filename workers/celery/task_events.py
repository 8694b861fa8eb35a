"""Task events as Celery's monitors read them, gathered and sent as one list. Knows no Redis.

They leave in one message and in order: sent one by one, a `started` could overtake its `received`,
and Flower would show a job without a name.
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
    """What every event says of a job.

    Attributes:
        uuid: the job's id.
        hostname: the node name of the worker.
        timestamp: seconds since 1970.
        utcoffset: hours that local time is behind UTC, as Celery counts them.
        pid: the worker's.
        clock: Celery's logical clock, set when the event leaves.
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
    """Its batch went to a model process."""


class Succeeded(TaskEvent, tag="task-succeeded"):
    """It ended with a result."""

    result: str
    runtime: float | None


class Failed(TaskEvent, tag="task-failed"):
    """It ended with an error."""

    exception: str
    traceback: str | None


class Retried(TaskEvent, tag="task-retried"):
    """It is put off for another attempt."""

    exception: str
    traceback: str | None


class Revoked(TaskEvent, tag="task-revoked"):
    """It was cancelled."""

    terminated: bool = False
    signum: str | None = None
    expired: bool = False


Head = tuple[str, str, float, float, int, int]


class TaskEventLog:
    """The events of one worker that have not left yet.

    Args:
        hostname: Celery's node name, such as gpu0@host.
        ticks: advances Celery's logical clock by so many and gives the first of them.

    Attributes:
        events: in the order in which they are to leave.
    """

    def __init__(self, hostname: str, ticks: Callable[[int], int]) -> None:
        self.events: list[TaskEvent] = []
        self._hostname = hostname
        self._ticks = ticks
        self._utcoffset = utcoffset()
        self._pid = os.getpid()

    def head(self, job_id: str, epoch_s: float) -> Head:
        """The fields that every event begins with."""
        return (job_id, self._hostname, epoch_s, self._utcoffset, self._pid, 0)

    def message(self) -> bytes:
        """Take all events out, as one message for kombu's channel of lists of task events."""
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
        # Base64 needs no escaping, so that the body is not encoded once more.
        body = binascii.b2a_base64(_encode(events), newline=False)
        return b'{"body":"%s",%s' % (body, _encode(rest)[1:])


class _Meta(msgspec.Struct):
    result: msgspec.Raw
    traceback: str | None = None


_META: Final = msgspec.json.Decoder(_Meta)


def result_text(meta: bytes, content_type: str) -> str:
    """The result in a Celery result: JSON's beginning, or only type and size of what is not JSON.

    Args:
        meta: the Celery result; empty where the client wants none kept.
        content_type: of a result that is not JSON, else empty.
    """
    if not meta:
        return ""
    raw = memoryview(_META.decode(meta).result)
    if content_type:
        return f"<{content_type}, {kombu_size(raw)} bytes>"
    # A character has at most four bytes, so that no more than these are ever shown.
    text = str(raw[: RESULT_MAX_CHARS * 4], "utf-8", "replace")
    return text if len(text) <= RESULT_MAX_CHARS else text[: RESULT_MAX_CHARS - 1] + "…"


def traceback_text(meta: bytes) -> str | None:
    """The traceback in a Celery result, if there is one."""
    return _META.decode(meta).traceback if meta else None
