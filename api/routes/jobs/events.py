"""`GET /api/v1/jobs/{id}/events`: the events of a job, as server-sent events.

The id of an event follows from the job's record alone, so that any API process can continue the
stream of another. It names a state and not a moment: a client that reconnects receives the present
state, and not the states in between.

    q-<attempts>-<place>      queued
    d-<attempts>-<due>        scheduled: waits for its countdown or for a retry
    r-<token>                 running
    p-<token>-<mark>          progress
    e-<ended>                 ended
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.messages import NO_CONTENT, NO_STORE, Reply, Request, StreamingReply
from api.routes.event_stream import EventWriter, StreamEvent, stream_events
from api.routes.jobs.job import visible_job
from api.services import Services
from api.submission.decoding import read_query
from headrace.errors import BrokerError
from headrace.jobs.job import Job, State, iso, read_error
from headrace.queue.following.watcher import JobWatch
from headrace.schema.serialization import Waiting, job_object

#: Seconds between two reads of an ended job while Redis does not answer.
LOOK_AGAIN_S: Final = 1.0
#: Seconds between two events that differ in the queue position alone.
PLACE_S: Final = 1.0
#: An id of this API; any other is ignored.
ID: Final = re.compile(r"[qdrpe]-[0-9a-z-]{1,64}")


class EventsQuery(msgspec.Struct):
    """The query of an event stream."""

    last_event_id: Annotated[
        str | UnsetType, Meta(description="Like Last-Event-ID, and with precedence over it.")
    ] = UNSET


def last_event_id(request: Request) -> str:
    """Return the id of the last event that the client has, "" for none."""
    given = read_query(request, EventsQuery).last_event_id
    return request.header(b"last-event-id").decode("latin-1") if given is UNSET else given


async def get_events(services: Services, request: Request, job_id: str) -> Reply | StreamingReply:
    """Stream the job's events from now, or from the last event that the client has."""
    last_id = last_event_id(request)
    job = await visible_job(services, request.caller, job_id)
    if job.state.final and last_id == end_id(job.ended_us):
        # The client has all events; by the standard a 204 ends its reconnecting.
        return Reply(NO_CONTENT, b"", headers=(NO_STORE,))
    if job.quiet and not job.state.final and request.method != "HEAD":
        await services.queue.listen(job.id)
    return stream_events(services, request, _events(services, job, last_id), EventWriter())


@contextlib.contextmanager
def _events(services: Services, job: Job, last_id: str) -> Iterator[_JobEvents]:
    with services.watcher.watch(job) as watch:
        yield _JobEvents(services, job, watch, last_id)


class _JobEvents:
    def __init__(self, services: Services, job: Job, watch: JobWatch, last_id: str) -> None:
        self._services = services
        self._job = job
        self._watch = watch
        self._sequence = EventSequence(job.id, last_id)
        #: The event that the job has ended, whose record must be read first.
        self._end: StreamEvent | None = None
        self._complete = False
        self.wake = watch.wake

    @property
    def over(self) -> bool:
        return self._complete or self._watch.unknown or self._services.watcher.dismissed

    async def look(self) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if self._end is None and not self._watch.unknown:
            status = self._watch.status or self._job
            now = asyncio.get_running_loop().time()
            waiting_for = None
            if status.state is State.QUEUED:
                model, version = self._job.model, self._job.asked_version
                waiting_for = await self._services.model_statuses.waiting_for(model, version)
            events = self._sequence.due(status, now, waiting_for)
            if events and not events[-1].data:
                self._end = events.pop()
        if self._end is not None:
            events += await self._ended(self._end.name)
        return events

    async def woken(self, seconds: float) -> None:
        if self._end is not None:
            seconds = min(seconds, LOOK_AGAIN_S)
        elif self._sequence.held:
            seconds = min(seconds, self._sequence.soon(asyncio.get_running_loop().time()))
        await self._watch.woken(seconds)

    async def _ended(self, name: str) -> list[StreamEvent]:
        """Return the ended job as `GET` shows it; nothing while Redis does not answer."""
        try:
            job = await self._services.queue.read(self._job.id)
        except BrokerError:
            return []
        self._complete = True
        if job is None or not job.state.final or job.created_us != self._job.created_us:
            # Forgotten or requeued: a client that reconnects receives the new state. The id may be
            # that of a later job, of another API key.
            return []
        return [StreamEvent(end_id(job.ended_us), name, job_object(job))]


def end_id(ended_us: int) -> str:
    """Return the id of the event that a job has ended."""
    return f"e-{ended_us}"


class EventSequence:
    """A job's events; a position is `held` back if the last was sent less than PLACE_S ago."""

    def __init__(self, job_id: str, last_id: str) -> None:
        self._job_id = job_id
        self._last = last_id if ID.fullmatch(last_id) else ""
        self._place_at = -PLACE_S
        self.held = False

    def due(self, status: Job, now: float, waiting_for: Waiting | None = None) -> list[StreamEvent]:
        """Return the events that are due; they count as sent. The end of the job has no data."""
        events = self._unknown(self._events(status, waiting_for))
        self.held = False
        if not events:
            return []
        if events[-1].id.startswith("q-"):
            same_wait = self._last.rpartition("-")[0] == events[-1].id.rpartition("-")[0]
            self.held = same_wait and now - self._place_at < PLACE_S
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

    def _events(self, status: Job, waiting_for: Waiting | None) -> list[StreamEvent]:
        """Return all events of the job's present state, oldest first."""
        state = status.state
        if state is State.QUEUED:
            place = status.place or None
            target, reason = waiting_for or (None, "")
            members: dict[str, Any] = {"waiting_reason": reason} if reason else {}
            data = self._data(status, queue_position=place, waiting_for=target, **members)
            # The reason makes the event a new one; another position alone would be held back.
            kind = f"q-{status.attempts}{'-x' if reason else ''}"
            return [StreamEvent(f"{kind}-{status.place}", "queued", data)]
        if state is State.SCHEDULED:
            members = {"due_at": iso(status.due_us)} if status.due_us else {}
            if status.error_json:
                with contextlib.suppress(msgspec.MsgspecError):
                    members["error"] = read_error(status.error_json)
            data = self._data(status, **members)
            return [StreamEvent(f"d-{status.attempts}-{status.due_us}", "scheduled", data)]
        events = []
        if status.started_us and not (state.final and self._knows_attempt(status.attempts)):
            data = self._data(status, status="running", started_at=iso(status.started_us))
            events.append(StreamEvent(f"r-{status.token}", "running", data))
        if state.final:
            events.append(StreamEvent(end_id(status.ended_us), "ended", b""))
        elif status.progress is not None:
            data = self._data(status, progress=status.progress)
            events.append(StreamEvent(f"p-{status.token}-{status.progress_mark}", "progress", data))
        return events

    def _knows_attempt(self, attempts: int) -> bool:
        """Return whether the client's last event is the wait after this attempt."""
        kind, _, rest = self._last.partition("-")
        return kind in ("q", "d") and rest.partition("-")[0] == str(attempts)

    def _data(self, job: Job, status: str = "", **members: Any) -> bytes:
        head = {"id": self._job_id, "status": status or job.state.status, "attempts": job.attempts}
        return msgspec.json.encode({**head, **members})
