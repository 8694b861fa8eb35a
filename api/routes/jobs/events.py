"""`GET /api/v1/jobs/{id}/events`: the events of a job, as server-sent events."""

from __future__ import annotations

import asyncio
from typing import Final

from api.http.messages import (
    NO_CONTENT,
    NO_STORE,
    ClientGone,
    Header,
    Reply,
    Request,
    StreamingReply,
    Write,
    hung_up,
)
from api.routes.jobs.job import visible_job
from api.services import Services
from api.submission.job_events import HEAD, HEARTBEAT, EventSequence, StreamEvent, end_id, frame
from headrace.errors import BrokerError
from headrace.jobs.job import Job, State
from headrace.jobs.serialization import REPLICA, job_object
from headrace.queue.watcher import JobStatus, JobWatch, status_of

#: Seconds of silence before a comment: proxies close connections that are silent for long.
HEARTBEAT_S: Final = 15.0
#: Seconds after which a client that reads nothing is disconnected.
STALLED_S: Final = 60.0
#: Seconds between two reads of an ended job while Redis does not answer.
LOOK_AGAIN_S: Final = 1.0

_QUERY: Final = frozenset({"last_event_id"})
_EVENT_STREAM: Final = b"text/event-stream"
#: Without it nginx buffers the answer.
_UNBUFFERED: Final[Header] = (b"x-accel-buffering", b"no")
_HEADERS: Final = (NO_STORE, _UNBUFFERED)


async def get_events(services: Services, request: Request, job_id: str) -> Reply | StreamingReply:
    """Stream the job's events from now, or from the last event that the client has."""
    last_id = request.query(_QUERY).get("last_event_id")
    if last_id is None:
        last_id = request.header(b"last-event-id").decode("latin-1")
    job = await visible_job(services, request.caller, job_id)
    if job.state.final and last_id == end_id(job.ended_us):
        # The client has all events; by the standard a 204 ends its reconnecting.
        return Reply(NO_CONTENT, b"", headers=(NO_STORE,))
    if request.method == "HEAD":
        return StreamingReply(200, _nothing, _EVENT_STREAM, _HEADERS)
    if job.quiet and not job.state.final:
        await services.queue.listen(job.id)
    caller = request.caller
    services.stream_limit.take(caller.key_id, keyed=services.authenticator is not None)
    stream = _EventStream(services, request, job, last_id)
    return StreamingReply(200, stream.run, _EVENT_STREAM, _HEADERS)


async def _nothing(_: Write) -> None:
    """Write no body: the answer to HEAD."""


class _EventStream:
    """One stream, while it is open."""

    def __init__(self, services: Services, request: Request, job: Job, last_id: str) -> None:
        self._services = services
        self._request = request
        self._job = job
        self._sequence = EventSequence(job.id, last_id)
        self._gone = False

    async def run(self, write: Write) -> None:
        """Write events until the job has ended, the client is gone or this process stops."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._services.settings.event_stream_max_s
        try:
            with self._services.watcher.watch(self._job.id) as watch:
                watching = loop.create_task(self._until_gone(watch))
                try:
                    await self._put(write, HEAD)
                    await self._send_events(write, watch, until)
                finally:
                    watching.cancel()
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
                    await self._put(write, frame(event.id, event.name, event.data))
                beat_at = loop.time() + HEARTBEAT_S
            if ended or self._over(until):
                return
            if self._sequence.held:
                soon_s = self._sequence.soon(loop.time())
            await watch.woken(max(0.0, min(soon_s, beat_at - loop.time(), until - loop.time())))
            if self._gone:
                raise ClientGone
            if loop.time() >= beat_at:
                await self._put(write, HEARTBEAT)
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
                if self._gone:
                    raise ClientGone from None
                continue
            if job is None or not job.state.final:
                # Forgotten or requeued: a client that reconnects receives the new state.
                return False
            await self._put(write, frame(end_id(job.ended_us), event.name, job_object(job)))
            return True
        return False

    async def _waits_for(self, status: JobStatus) -> str | None:
        if status.state is not State.QUEUED:
            return None
        ready = await self._services.model_statuses.has_ready(self._job.model)
        return None if ready else REPLICA

    async def _still_admitted(self) -> bool:
        authenticator = self._services.authenticator
        return authenticator is None or await authenticator.still_admits(self._request.caller)

    async def _until_gone(self, watch: JobWatch) -> None:
        await hung_up(self._request.receive)
        self._gone = True
        watch.wake()

    async def _put(self, write: Write, data: bytes) -> None:
        """Write, for at most STALLED_S seconds.

        Raises:
            ClientGone: the client has read nothing for that long.
        """
        try:
            async with asyncio.timeout(STALLED_S):
                await write(data)
        except TimeoutError:
            raise ClientGone from None
