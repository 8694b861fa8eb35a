"""A job's events as they come: reading the stream, and going on where it broke. See steps.py."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from headrace.client.models import Failure, Job
from headrace.client.requests import job_request
from headrace.client.retries import RetryDeadline, Session, borne
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

#: The server says something each 15 s at the least, be it a comment.
SILENCE_S: Final = 45.0
#: A stream that has ended in order is asked for again after so long, unless it says otherwise.
AGAIN_S: Final = 1.0
#: The longest line of a stream: a job with its result fits, by the server's own bounds.
LINE_MAX_BYTES: Final = 256 * 1024 * 1024


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a job.

    Attributes:
        name: `queued`, `scheduled`, `running`, `progress` or `ended`; a newer server may have more.
        event_id: with it as `last_event_id` the events behind this one can be asked for.
        id: the job's.
        status: the job's by then.
        attempts: how often it had been handed to a worker.
        queue_position: its place, while it is queued; 1 is next.
        waiting_for: `replica` while it is queued and no worker has the model loaded.
        due_at: when it joins its queue, while it is scheduled.
        started_at: once it runs.
        progress: how far it has come, as its handler says.
        error: while it waits for another try, how the last one ended.
        job: all of it, once it has ended.
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
    """The lines of a stream, put together to events.

    Attributes:
        retry_s: how long the server wants its clients to wait before they come back.
    """

    def __init__(self) -> None:
        self.retry_s = AGAIN_S
        self._rest = b""
        self._fields: dict[str, str] = {}

    def feed(self, chunk: bytes) -> list[JobEvent]:
        """The events that are complete with these bytes.

        Raises:
            UnexpectedAnswer: it is no stream of a job's events.
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
            said = {"id": data["id"], "status": data["status"]} if ended else data
            event = {**said, "name": fields.get("event", ""), "event_id": fields.get("id", "")}
            if ended:
                event["job"] = data
                event["attempts"] = data.get("attempts", 0)
            return msgspec.convert(event, JobEvent)
        except (msgspec.MsgspecError, KeyError) as error:
            raise UnexpectedAnswer(
                f"the event stream cannot be read: {error}",
                hint="Is the client not older than the server?",
            ) from None


def events(
    session: Session, job: str | Job, *, last_event_id: str | None = None
) -> Stream[JobEvent]:
    """What becomes of a job, until it has ended; also while the server is restarted.

    Args:
        session: the server.
        job: the job, or its id.
        last_event_id: `event_id` of the last event that is known; only what came after it is told.

    Raises:
        JobNotFound: there is none of that id.
        ServerUnreachable: the server was away for longer than `retry_s`.
    """
    last, patience = last_event_id or "", RetryDeadline(session)
    while True:
        asked = job_request("GET", job, wait_s=SILENCE_S, below="/events")
        headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
        opened = yield OpenStream(
            HttpRequest(asked.method, asked.path, headers=headers, wait_s=SILENCE_S)
        )
        if not (yield from borne(session, patience, opened.outcome)):
            continue
        if opened.ear is None:
            return  # 204: all is told
        parser = Parser()
        while True:
            heard: bytes | ConnectionFailed = yield ReadStream(opened.ear)
            if not heard or isinstance(heard, ConnectionFailed):
                break
            patience = RetryDeadline(session)
            for event in parser.feed(heard):
                last = event.event_id or last
                yield Yield([event])
                if event.job is not None:
                    yield CloseStream(opened.ear)
                    return
        yield CloseStream(opened.ear)
        yield Pause(parser.retry_s)
