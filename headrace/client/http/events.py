"""Reads streams of events and of pieces, and resumes them after a failure (sansio.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from headrace.client.http.retries import RetryDeadline, Session, job_error, succeeded
from headrace.client.inputs import job_request
from headrace.client.models import Job
from headrace.client.sansio import (
    CloseStream,
    ConnectionFailed,
    HttpRequest,
    OpenStream,
    Pause,
    ReadStream,
    Stream,
    Yield,
)
from headrace.errors import PiecesMissing, StreamRestarted, UnexpectedAnswer
from headrace.jobs.job import JobFailure
from headrace.jobs.progress import Progress

T = TypeVar("T")

#: Seconds without data after which a stream is broken; the server sends a comment every 15 s.
SILENCE_S: Final = 45.0
#: Seconds before an ended stream is opened again, unless the server sends another value.
AGAIN_S: Final = 1.0
#: Maximum length of a line; a job with the largest result of the server fits.
LINE_MAX_BYTES: Final = 256 * 1024 * 1024


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a job.

    Attributes:
        name: `queued`, `scheduled`, `running`, `progress` or `ended`; a newer server may have more.
        event_id: as `last_event_id` it resumes the events after this one.
        attempts: how often the job has begun.
        queue_position: its place in the queue, while it is queued; 1 is next.
        waiting_for: while it is queued and no worker has the model loaded: `load` if one loads it
            on demand, else `replica`.
        waiting_reason: while it is queued: why no worker can load the model, if none can.
        due_at: when it joins its queue, while it is scheduled.
        error: how the last attempt failed, while the job waits for a retry.
        job: the whole job, once it has ended.
    """

    name: str
    event_id: str
    id: str
    status: str
    attempts: int = 0
    queue_position: int | None = None
    waiting_for: str | None = None
    waiting_reason: str | None = None
    due_at: datetime | None = None
    started_at: datetime | None = None
    progress: Progress | None = None
    error: JobFailure | None = None
    job: Job | None = None


class ServerEvent(NamedTuple):
    """An event as the server sends it; `event_id` resumes behind it, `items` is a JSON array."""

    name: str
    event_id: str
    data: dict[str, Any]


class Parser:
    """Parses the lines of a stream to events.

    Attributes:
        retry_s: seconds that the server asks its clients to wait before they reconnect.
        last_id: where to resume the stream; also an id without an event sets it.
    """

    def __init__(self, last_id: str = "") -> None:
        self.retry_s = AGAIN_S
        self.last_id = last_id
        self._rest = b""
        self._fields: dict[str, str] = {}

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Add bytes, return the complete events; raise UnexpectedAnswer if they have no JSON."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_MAX_BYTES:
            raise UnexpectedAnswer("a line of the event stream does not end")
        found = []
        for line in lines:
            text = line.decode("utf-8", "replace").removesuffix("\r")
            if not text:
                event = self._event()
                found += [event] if event is not None else []
            else:
                self._take(text)
        return found

    def _take(self, text: str) -> None:
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "retry" and value.isdecimal():
            self.retry_s = int(value) / 1000
        elif name == "data" and name in self._fields:
            self._fields[name] += f"\n{value}"
        elif name:
            self._fields[name] = value

    def _event(self) -> ServerEvent | None:
        fields, self._fields = self._fields, {}
        self.last_id = fields.get("id") or self.last_id
        if "data" not in fields:
            return None
        with _readable():
            data = msgspec.json.decode(fields["data"], type=dict[str, Any] | list[Any])
        if isinstance(data, list):
            data = {"items": data}
        return ServerEvent(fields.get("event", ""), fields.get("id", ""), data)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Raise UnexpectedAnswer for an event that cannot be read."""
    try:
        yield
    except (msgspec.MsgspecError, KeyError) as error:
        raise UnexpectedAnswer(
            f"the event stream cannot be read: {error}",
            hint="Check that the client is not older than the server.",
        ) from None


def events(
    session: Session, job: str | Job, *, last_event_id: str | None = None
) -> Stream[JobEvent]:
    """Yield a job's events until it has ended, also while the server restarts.

    Args:
        last_event_id: `event_id` of the last known event; only later events are yielded.

    Raises:
        JobNotFound: no job has this id.
        ServerUnreachable: the server was unreachable for longer than `retry_s`.
    """
    path = job_request("GET", job, below="/events").path
    yield from follow(session, path, last_event_id, _job_event)


def follow(
    session: Session,
    path: str,
    last_event_id: str | None,
    read: Callable[[ServerEvent], tuple[list[T], bool]],
) -> Stream[T]:
    """Yield the events of a stream, also while the server restarts, and none of them twice.

    Args:
        last_event_id: the id of the last known event; only later events are yielded.
        read: returns what to yield for an event, and whether this was the last one.

    Raises:
        ServerUnreachable: the server was unreachable for longer than `retry_s`.
        UnexpectedAnswer: an event cannot be read.
    """
    last, deadline = last_event_id or "", RetryDeadline(session)
    while True:
        headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
        opened = yield OpenStream(HttpRequest("GET", path, headers=headers, wait_s=SILENCE_S))
        if not (yield from succeeded(session, deadline, opened.outcome)):
            continue
        if opened.reader is None:
            return  # 204: there are no more events
        parser = Parser(last)
        while True:
            chunk: bytes | ConnectionFailed = yield ReadStream(opened.reader)
            if not chunk or isinstance(chunk, ConnectionFailed):
                break
            deadline = RetryDeadline(session)
            for event in parser.feed(chunk):
                with _readable():
                    items, ended = read(event)
                if items:
                    yield Yield(items)
                if ended:
                    yield CloseStream(opened.reader)
                    return
            last = parser.last_id
        yield CloseStream(opened.reader)
        yield Pause(parser.retry_s)


def _job_event(event: ServerEvent) -> tuple[list[JobEvent], bool]:
    data, ended = event.data, event.name == "ended"
    if ended:
        common = {"id": data["id"], "status": data["status"]}
        data = {**common, "job": data, "attempts": data.get("attempts", 0)}
    names = {"name": event.name, "event_id": event.event_id}
    return [msgspec.convert({**data, **names}, JobEvent)], ended


def stream(session: Session, job: str | Job, *, starting_after: int | str = 0) -> Stream[Any]:
    """Yield the pieces of a streaming job until it has ended, also while the server restarts.

    A job of a model that does not stream yields none; `result` has its result.

    Args:
        starting_after: yield only the pieces behind this one: the `place` of an error, or an index;
            indexes count from 1.

    Raises:
        StreamRestarted: the job began again, so the pieces that were yielded do not count.
        PiecesMissing: the server does not keep some pieces any more.
        JobError: the job failed; the class shows how.
        JobNotFound: no job has this id.
        ServerUnreachable: the server was unreachable for longer than `retry_s`.
    """
    request = job_request("GET", job, below="/stream")
    job_id = job if isinstance(job, str) else job.id
    after = str(starting_after) if starting_after else None
    yield from follow(session, request.path, after, partial(_pieces, job_id))


def _pieces(job_id: str, event: ServerEvent) -> tuple[list[Any], bool]:
    match event.name:
        case "pieces":
            return event.data["items"], False
        case "restarted":
            raise StreamRestarted(job_id, event.event_id)
        case "missing":
            first, last = event.data["first"], event.data["last"]
            raise PiecesMissing(job_id, first, last, event.event_id)
        case "ended":
            job = msgspec.convert(event.data, Job)
            if not job.succeeded:
                raise job_error(job)
            return [], True
    return [], False  # of a newer server
