"""Decide which events of a job are due, and their ids. Independent of connections.

An id follows from the job's record alone, so that any API process can continue the stream of
another. It names a state and not a moment: a client that reconnects receives the present state, and
not the states in between.

    q-<attempts>-<place>      queued
    d-<attempts>-<due>        scheduled: waits for its countdown or for a retry
    r-<token>                 running
    p-<token>-<mark>          progress
    e-<ended>                 ended
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final, NamedTuple

import msgspec

from headrace.jobs.failure import read_error
from headrace.jobs.job import State, iso
from headrace.queue.watcher import JobStatus

#: Seconds between two events that differ in the queue position alone.
PLACE_S: Final = 1.0
#: Milliseconds for which a client waits before it reconnects.
RETRY_MS: Final = 1000
#: A comment, which keeps an otherwise silent connection open.
HEARTBEAT: Final = b":\n\n"
HEAD: Final = b"retry: %d\n\n" % RETRY_MS
#: An id of this API; any other is ignored.
ID: Final = re.compile(r"[qdrpe]-[0-9a-z-]{1,64}")

_LINES: Final = re.compile(rb"\r\n|\r|\n")
_ENCODE: Final = msgspec.json.encode


class StreamEvent(NamedTuple):
    """One event.

    Attributes:
        data: JSON; None for the end of the job, whose record must be read first.
    """

    id: str
    name: str
    data: bytes | None


def frame(event_id: str, name: str, data: bytes) -> bytes:
    """Return an event as it is sent.

    Line breaks in the user's JSON are between tokens only; the client joins the lines.
    """
    lines = b"".join(b"data: %s\n" % line for line in _LINES.split(data))
    return b"id: %s\nevent: %s\n%s\n" % (event_id.encode(), name.encode(), lines)


def end_id(ended_us: int) -> str:
    """Return the id of the event that a job has ended."""
    return f"e-{ended_us}"


class EventSequence:
    """The events of a job that one client has received, and those that are due.

    Args:
        job_id: the job.
        last_id: the id of the last event that the client has; "" for none.

    Attributes:
        held: a new queue position is held back, as the last was sent less than PLACE_S ago.
    """

    def __init__(self, job_id: str, last_id: str) -> None:
        self._job_id = job_id
        self._last = last_id if ID.fullmatch(last_id) else ""
        self._place_at = -PLACE_S
        self.held = False

    def due(
        self, status: JobStatus, now: float, waiting_for: str | None = None
    ) -> list[StreamEvent]:
        """Return the events that are due; they count as sent.

        Args:
            status: the status of the job.
            now: the time in seconds.
            waiting_for: what a queued job waits for besides its turn.
        """
        events = self._unknown(self._events(status, waiting_for))
        self.held = False
        if not events:
            return []
        if _is_place(events[-1].id):
            self.held = _same_wait(self._last, events[-1].id) and now - self._place_at < PLACE_S
            if self.held:
                return []
            self._place_at = now
        self._last = events[-1].id
        return events

    def soon(self, now: float) -> float:
        """Return the seconds until a queue position that is held back is due."""
        return max(0.0, self._place_at + PLACE_S - now)

    def _unknown(self, events: list[StreamEvent]) -> list[StreamEvent]:
        """Return the events after the last that the client has."""
        ids = [event.id for event in events]
        if self._last in ids:
            return events[ids.index(self._last) + 1 :]
        kind, _, rest = self._last.partition("-")
        if kind == "p":
            # Progress with this token implies that the client knows the job runs with it.
            running = f"r-{rest.partition('-')[0]}"
            if running in ids:
                return events[ids.index(running) + 1 :]
        return events

    def _events(self, status: JobStatus, waiting_for: str | None) -> list[StreamEvent]:
        """Return all events of the job's present state, oldest first."""
        state = status.state
        if state is State.QUEUED:
            place = status.place or None
            data = self._data(status, queue_position=place, waiting_for=waiting_for)
            return [StreamEvent(f"q-{status.attempts}-{status.place}", "queued", data)]
        if state is State.SCHEDULED:
            data = self._data(status, **_schedule(status))
            return [StreamEvent(f"d-{status.attempts}-{status.due_us}", "scheduled", data)]
        events = []
        if status.started_us:
            data = self._data(status, status="running", started_at=iso(status.started_us))
            events.append(StreamEvent(f"r-{status.token}", "running", data))
        if state.final:
            events.append(StreamEvent(end_id(status.ended_us), "ended", None))
        elif status.progress is not None:
            data = self._data(status, progress=status.progress)
            events.append(StreamEvent(f"p-{status.token}-{status.mark}", "progress", data))
        return events

    def _data(self, job: JobStatus, status: str = "", **members: Any) -> bytes:
        return _ENCODE(
            {
                "id": self._job_id,
                "status": status or job.state.status,
                "attempts": job.attempts,
                **members,
            }
        )


def _schedule(status: JobStatus) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if status.due_us:
        members["due_at"] = iso(status.due_us)
    if status.error_json:
        with contextlib.suppress(msgspec.MsgspecError):
            members["error"] = read_error(status.error_json)
    return members


def _is_place(event_id: str) -> bool:
    return event_id.startswith("q-")


def _same_wait(one: str, other: str) -> bool:
    """Return whether two ids differ in the queue position alone."""
    return one.rpartition("-")[0] == other.rpartition("-")[0]
