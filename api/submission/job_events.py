"""A job's events as a stream says them: which are due, under which ids. Knows no connections.

An id follows from the job's record alone, so that any API process can go on where another one
ended. It names a state and not a moment: whoever comes back is told what the job is by now, and not
what it was in between.

    q-<attempts>-<place>      queued
    d-<attempts>-<due>        scheduled: it waits for its time, or for another try
    r-<token>                 running
    p-<token>-<mark>          progress
    e-<ended>                 ended
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final, NamedTuple

import msgspec

from headrace.jobs.job import State, iso
from headrace.queue.watcher import JobStatus

#: Of the same job its place alone is said at most so often, in seconds.
PLACE_S: Final = 1.0
#: A client that lost its connection waits so long before it comes back, in milliseconds.
RETRY_MS: Final = 1000
#: What keeps a connection open that is silent otherwise: a comment.
HEARTBEAT: Final = b":\n\n"
HEAD: Final = b"retry: %d\n\n" % RETRY_MS
#: An id of ours; any other says nothing.
ID: Final = re.compile(r"[qdrpe]-[0-9a-z-]{1,64}")

_LINES: Final = re.compile(rb"\r\n|\r|\n")
_ENCODE: Final = msgspec.json.encode


class _Error(msgspec.Struct):
    type: str = "error"
    message: str = ""
    retryable: bool = False


_ERROR: Final = msgspec.json.Decoder(_Error)


class StreamEvent(NamedTuple):
    """One event.

    Attributes:
        data: JSON; None where all of the job is to be said, which is to be read first.
    """

    id: str
    name: str
    data: bytes | None


def frame(event_id: str, name: str, data: bytes) -> bytes:
    """An event as it is sent.

    Line breaks in the user's own JSON stand between its tokens only; the client joins the lines.
    """
    lines = b"".join(b"data: %s\n" % line for line in _LINES.split(data))
    return b"id: %s\nevent: %s\n%s\n" % (event_id.encode(), name.encode(), lines)


def end_id(ended_us: int) -> str:
    """The id of the event that a job has ended."""
    return f"e-{ended_us}"


class EventSequence:
    """What one client was told of a job, and what is due to be told.

    Args:
        job_id: the job.
        last_id: the id of the last event that the client has; "" for none.

    Attributes:
        held: a new place is kept back, as the last was said a moment ago.
    """

    def __init__(self, job_id: str, last_id: str) -> None:
        self._job_id = job_id
        self._last = last_id if ID.fullmatch(last_id) else ""
        self._place_at = -PLACE_S
        self.held = False

    def due(
        self, standing: JobStatus, now: float, waiting_for: str | None = None
    ) -> list[StreamEvent]:
        """The events that are due; what was given counts as told.

        Args:
            standing: how the job stands.
            now: the time in seconds.
            waiting_for: what a queued job waits for beside its turn.
        """
        events = self._unknown(self._events(standing, waiting_for))
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
        """In how many seconds a place that is kept back may be said."""
        return max(0.0, self._place_at + PLACE_S - now)

    def _unknown(self, events: list[StreamEvent]) -> list[StreamEvent]:
        """Those behind the last that the client has."""
        ids = [event.id for event in events]
        if self._last in ids:
            return events[ids.index(self._last) + 1 :]
        kind, _, rest = self._last.partition("-")
        if kind == "p":
            # Progress under a token says that it runs under that.
            running = f"r-{rest.partition('-')[0]}"
            if running in ids:
                return events[ids.index(running) + 1 :]
        return events

    def _events(self, standing: JobStatus, waiting_for: str | None) -> list[StreamEvent]:
        """All that the record tells of the job as it is now, oldest first."""
        state = standing.state
        if state is State.QUEUED:
            place = standing.place or None
            said = self._said(standing, queue_position=place, waiting_for=waiting_for)
            return [StreamEvent(f"q-{standing.attempts}-{standing.place}", "queued", said)]
        if state is State.SCHEDULED:
            said = self._said(standing, **_schedule(standing))
            return [StreamEvent(f"d-{standing.attempts}-{standing.due_us}", "scheduled", said)]
        events = []
        if standing.started_us:
            said = self._said(standing, status="running", started_at=iso(standing.started_us))
            events.append(StreamEvent(f"r-{standing.token}", "running", said))
        if state.final:
            events.append(StreamEvent(end_id(standing.ended_us), "ended", None))
        elif standing.progress is not None:
            said = self._said(standing, progress=standing.progress)
            events.append(StreamEvent(f"p-{standing.token}-{standing.mark}", "progress", said))
        return events

    def _said(self, standing: JobStatus, status: str = "", **members: Any) -> bytes:
        return _ENCODE(
            {
                "id": self._job_id,
                "status": status or standing.state.status,
                "attempts": standing.attempts,
                **members,
            }
        )


def _schedule(standing: JobStatus) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if standing.due_us:
        members["due_at"] = iso(standing.due_us)
    if standing.error_json:
        with contextlib.suppress(msgspec.MsgspecError):
            members["error"] = _ERROR.decode(standing.error_json)
    return members


def _is_place(event_id: str) -> bool:
    return event_id.startswith("q-")


def _same_wait(one: str, other: str) -> bool:
    """Whether two ids differ in the place alone."""
    return one.rpartition("-")[0] == other.rpartition("-")[0]
