"""A job's events: reads the event stream and resumes it after a failure (see sansio.py)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from headrace.client.models import Failure, Job
from headrace.client.requests import job_request
from headrace.client.retries import RetryDeadline, Session, succeeded
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
from headrace.errors import UnexpectedAnswer
from headrace.jobs.progress import Progress

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
        id: the job's id.
        status: the job's status at the event.
        attempts: how often the job has begun.
        queue_position: its place in the queue, while it is queued; 1 is next.
        waiting_for: `replica` while it is queued and no worker has the model loaded.
        due_at: when it joins its queue, while it is scheduled.
        started_at: when it started, once it runs.
        progress: the progress that its handler reports.
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
    due_at: datetime | None = None
    started_at: datetime | None = None
    progress: Progress | None = None
    error: Failure | None = None
    job: Job | None = None


class Parser:
    """Parses the lines of a stream to events.

    Attributes:
        retry_s: seconds that the server asks its clients to wait before they reconnect.
    """

    def __init__(self) -> None:
        self.retry_s = AGAIN_S
        self._rest = b""
        self._fields: dict[str, str] = {}

    def feed(self, chunk: bytes) -> list[JobEvent]:
        """Add bytes and return the events that are complete.

        Raises:
            UnexpectedAnswer: it is not a stream of a job's events.
        """
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

    def _event(self) -> JobEvent | None:
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        try:
            data: dict[str, Any] = msgspec.json.decode(fields["data"], type=dict[str, Any])
            ended = fields.get("event") == "ended"
            common = {"id": data["id"], "status": data["status"]} if ended else data
            event = {**common, "name": fields.get("event", ""), "event_id": fields.get("id", "")}
            if ended:
                event["job"] = data
                event["attempts"] = data.get("attempts", 0)
            return msgspec.convert(event, JobEvent)
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
        job: the job, or its id.
        last_event_id: `event_id` of the last known event; only later events are yielded.

    Raises:
        JobNotFound: no job has this id.
        ServerUnreachable: the server was unreachable for longer than `retry_s`.
    """
    last, deadline = last_event_id or "", RetryDeadline(session)
    while True:
        request = job_request("GET", job, wait_s=SILENCE_S, below="/events")
        headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
        opened = yield OpenStream(
            HttpRequest(request.method, request.path, headers=headers, wait_s=SILENCE_S)
        )
        if not (yield from succeeded(session, deadline, opened.outcome)):
            continue
        if opened.reader is None:
            return  # 204: there are no more events
        parser = Parser()
        while True:
            chunk: bytes | ConnectionFailed = yield ReadStream(opened.reader)
            if not chunk or isinstance(chunk, ConnectionFailed):
                break
            deadline = RetryDeadline(session)
            for event in parser.feed(chunk):
                last = event.event_id or last
                yield Yield([event])
                if event.job is not None:
                    yield CloseStream(opened.reader)
                    return
        yield CloseStream(opened.reader)
        yield Pause(parser.retry_s)
