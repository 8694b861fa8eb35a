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
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.messages import (
    NO_CONTENT,
    NO_STORE,
    ClientGone,
    HangUp,
    Header,
    Reply,
    Request,
    StreamingReply,
    Write,
)
from api.routes.jobs.job import visible_job, write_nothing
from api.services import Services
from api.submission.decoding import read_query
from headrace.errors import BrokerError
from headrace.jobs.encoding import without_line_ends
from headrace.jobs.failure import read_error
from headrace.jobs.job import Job, State, iso
from headrace.jobs.serialization import Waiting, job_object
from headrace.queue.watcher import JobStatus, JobWatch, status_of

#: Seconds of silence before a comment: proxies close connections that are silent for long.
HEARTBEAT_S: Final = 15.0
#: Seconds after which a client that reads nothing is disconnected.
STALLED_S: Final = 60.0
#: Seconds between two reads of an ended job while Redis does not answer.
LOOK_AGAIN_S: Final = 1.0
#: Seconds between two events that differ in the queue position alone.
PLACE_S: Final = 1.0
#: Milliseconds for which a client waits before it reconnects.
RETRY_MS: Final = 1000
#: A comment, which keeps an otherwise silent connection open.
HEARTBEAT: Final = b":\n\n"
HEAD: Final = b"retry: %d\n\n" % RETRY_MS
#: An id of this API; any other is ignored.
ID: Final = re.compile(r"[qdrpe]-[0-9a-z-]{1,64}")

EVENT_STREAM: Final = b"text/event-stream"
_LINES: Final = re.compile(rb"\r\n|\r|\n")
#: Without it nginx buffers the answer.
_UNBUFFERED: Final[Header] = (b"x-accel-buffering", b"no")
STREAM_HEADERS: Final = (NO_STORE, _UNBUFFERED)


class EventsQuery(msgspec.Struct):
    """The query of an event stream."""

    last_event_id: Annotated[
        str | UnsetType, Meta(description="Like Last-Event-ID, and with precedence over it.")
    ] = UNSET


async def get_events(services: Services, request: Request, job_id: str) -> Reply | StreamingReply:
    """Stream the job's events from now, or from the last event that the client has."""
    last_id = read_query(request, EventsQuery).last_event_id
    if last_id is UNSET:
        last_id = request.header(b"last-event-id").decode("latin-1")
    job = await visible_job(services, request.caller, job_id)
    if job.state.final and last_id == end_id(job.ended_us):
        # The client has all events; by the standard a 204 ends its reconnecting.
        return Reply(NO_CONTENT, b"", headers=(NO_STORE,))
    if request.method == "HEAD":
        return StreamingReply(200, write_nothing, EVENT_STREAM, STREAM_HEADERS)
    if job.quiet and not job.state.final:
        await services.queue.listen(job.id)
    caller = request.caller
    services.stream_limit.take(caller.key_id, keyed=services.authenticator is not None)
    stream = _EventStream(services, request, job, last_id)
    return StreamingReply(200, stream.run, EVENT_STREAM, STREAM_HEADERS)


class _EventStream:
    """One stream, while it is open."""

    def __init__(self, services: Services, request: Request, job: Job, last_id: str) -> None:
        self._services = services
        self._request = request
        self._job = job
        self._sequence = EventSequence(job.id, last_id)

    async def run(self, write: Write) -> None:
        """Write events until the job has ended, the client is gone or this process stops."""
        until = asyncio.get_running_loop().time() + self._services.settings.event_stream_max_s
        try:
            with (
                self._services.watcher.watch(self._job) as watch,
                HangUp(self._request.receive, watch.wake) as self._client,
            ):
                await put(write, HEAD)
                await self._send_events(write, watch, until)
        finally:
            self._services.stream_limit.leave(self._request.caller.key_id)

    async def _send_events(self, write: Write, watch: JobWatch, until: float) -> None:
        loop = asyncio.get_running_loop()
        status: JobStatus | None = status_of(self._job)
        beat_at = loop.time() + HEARTBEAT_S
        # Checked before each event: a job with many events has no heartbeats.
        while status is not None and not watch.unknown and await self._still_admitted():
            ended, soon_s = False, HEARTBEAT_S
            events = self._sequence.due(status, loop.time(), await self._waits_for(status))
            for event in events:
                ended = event.data is None
                if ended and not await self._end(write, watch, event):
                    return
                if event.data is not None:
                    await put(write, frame(event.id, event.name, event.data))
                beat_at = loop.time() + HEARTBEAT_S
            if ended or self._over(until):
                return
            if self._sequence.held:
                soon_s = self._sequence.soon(loop.time())
            await watch.woken(max(0.0, min(soon_s, beat_at - loop.time(), until - loop.time())))
            if self._client.gone:
                raise ClientGone
            if loop.time() >= beat_at:
                await put(write, HEARTBEAT)
                beat_at = loop.time() + HEARTBEAT_S
            status = watch.status or status

    def _over(self, until: float) -> bool:
        return self._services.watcher.dismissed or asyncio.get_running_loop().time() >= until

    async def _end(self, write: Write, watch: JobWatch, event: StreamEvent) -> bool:
        """Send the ended job as `GET` shows it; False where the stream must end without it."""
        while not self._services.watcher.dismissed:
            try:
                job = await self._services.queue.read(self._job.id)
            except BrokerError:
                await watch.woken(LOOK_AGAIN_S)
                if self._client.gone:
                    raise ClientGone from None
                continue
            if job is None or not job.state.final or job.created_us != self._job.created_us:
                # Forgotten or requeued: a client that reconnects receives the new state. The id may
                # be that of a later job, of another API key.
                return False
            await put(write, frame(end_id(job.ended_us), event.name, job_object(job)))
            return True
        return False

    async def _waits_for(self, status: JobStatus) -> Waiting | None:
        if status.state is not State.QUEUED:
            return None
        job = self._job
        return await self._services.model_statuses.waiting_for(job.model, job.asked_version)

    async def _still_admitted(self) -> bool:
        authenticator = self._services.authenticator
        return authenticator is None or await authenticator.still_admits(self._request.caller)


class StreamEvent(NamedTuple):
    """One event.

    Attributes:
        data: JSON; None for the end of the job, whose record must be read first.
    """

    id: str
    name: str
    data: bytes | None


async def put(write: Write, data: bytes) -> None:
    """Write, for at most STALLED_S seconds.

    Raises:
        ClientGone: the client has read nothing for that long.
    """
    try:
        async with asyncio.timeout(STALLED_S):
            await write(data)
    except TimeoutError:
        raise ClientGone from None


def frame(event_id: str, name: str, data: bytes) -> bytes:
    """Return an event as it is sent.

    Line breaks in the user's JSON are between tokens only; the client joins the lines.
    """
    lines = b"".join(b"data: %s\n" % line for line in _LINES.split(without_line_ends(data)))
    return b"id: %s\nevent: %s\n%s\n" % (event_id.encode(), name.encode(), lines)


def end_id(ended_us: int) -> str:
    """Return the id of the event that a job has ended."""
    return f"e-{ended_us}"


class EventSequence:
    """The events of a job that one client has received, and those that are due.

    Attributes:
        held: a new queue position is held back, as the last was sent less than PLACE_S ago.
    """

    def __init__(self, job_id: str, last_id: str) -> None:
        self._job_id = job_id
        self._last = last_id if ID.fullmatch(last_id) else ""
        self._place_at = -PLACE_S
        self.held = False

    def due(
        self, status: JobStatus, now: float, waiting_for: Waiting | None = None
    ) -> list[StreamEvent]:
        """Return the events that are due; they count as sent."""
        events = self._unknown(self._events(status, waiting_for))
        self.held = False
        if not events:
            return []
        if events[-1].id.startswith("q-"):
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

    def _events(self, status: JobStatus, waiting_for: Waiting | None) -> list[StreamEvent]:
        """Return all events of the job's present state, oldest first."""
        state = status.state
        if state is State.QUEUED:
            place = status.place or None
            target, reason = waiting_for or (None, "")
            members = {"waiting_reason": reason} if reason else {}
            data = self._data(status, queue_position=place, waiting_for=target, **members)
            # The reason makes the event a new one; another position alone would be held back.
            kind = f"q-{status.attempts}{'-x' if reason else ''}"
            return [StreamEvent(f"{kind}-{status.place}", "queued", data)]
        if state is State.SCHEDULED:
            data = self._data(status, **_schedule(status))
            return [StreamEvent(f"d-{status.attempts}-{status.due_us}", "scheduled", data)]
        events = []
        if status.started_us and not (state.final and self._knows_attempt(status.attempts)):
            data = self._data(status, status="running", started_at=iso(status.started_us))
            events.append(StreamEvent(f"r-{status.token}", "running", data))
        if state.final:
            events.append(StreamEvent(end_id(status.ended_us), "ended", None))
        elif status.progress is not None:
            data = self._data(status, progress=status.progress)
            events.append(StreamEvent(f"p-{status.token}-{status.mark}", "progress", data))
        return events

    def _knows_attempt(self, attempts: int) -> bool:
        """Return whether the client's last event is the wait after this attempt."""
        kind, _, rest = self._last.partition("-")
        return kind in ("q", "d") and rest.partition("-")[0] == str(attempts)

    def _data(self, job: JobStatus, status: str = "", **members: Any) -> bytes:
        return msgspec.json.encode(
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


def _same_wait(one: str, other: str) -> bool:
    """Return whether two ids differ in the queue position alone."""
    return one.rpartition("-")[0] == other.rpartition("-")[0]
