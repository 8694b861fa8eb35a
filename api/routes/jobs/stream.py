"""`GET /api/v1/jobs/{id}/stream`: the pieces of a streaming job, while its handler yields them.

The id of an event is the index of its last piece, so any API process can go on where another one
stopped. What a client has not read stays in Redis: this process keeps one number for each client.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import lru_cache, partial
from typing import Annotated, Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.messages import (
    JSON,
    NO_CONTENT,
    NO_STORE,
    Header,
    Receive,
    Reply,
    Request,
    ResponseCutShort,
    StreamingReply,
    Write,
)
from api.routes.jobs.events import (
    EVENT_STREAM,
    HEAD,
    HEARTBEAT,
    HEARTBEAT_S,
    LOOK_AGAIN_S,
    STREAM_HEADERS,
    frame,
    put,
)
from api.routes.jobs.job import visible_job, write_nothing
from api.routes.media import NDJSON
from api.services import Services
from api.submission.decoding import read_query
from api.submission.submit import wait_for_end
from headrace.access.api_key import Caller
from headrace.errors import BrokerError, JobNotFound
from headrace.jobs.encoding import without_line_ends
from headrace.jobs.job import Job, State
from headrace.jobs.serialization import job_object
from headrace.queue.piece_log import LogEntry

#: An event id of this operation: the last index, and behind the end of the job a mark.
_ID: Final = re.compile(r"(\d{1,15})(-ended)?")
#: The weight of a media type in an Accept header.
_WEIGHT: Final = re.compile(rb"q\s*=\s*([01](?:\.\d{0,3})?)")


class StreamQuery(msgspec.Struct):
    """The query of a stream of pieces."""

    starting_after: Annotated[
        Annotated[int, Meta(ge=0)] | UnsetType,
        Meta(description="Send only the pieces behind this index.", examples=[17]),
    ] = UNSET
    format: Annotated[
        Literal["sse", "ndjson", "text"],
        Meta(
            description="`sse`: server-sent events. `ndjson`: a JSON object in each line. `text`: "
            "only the pieces; after a failure or a restart the connection is cut."
        ),
    ] = "sse"


async def get_stream(services: Services, request: Request, job_id: str) -> Reply | StreamingReply:
    """Stream the pieces of the job from its beginning, or from those that the client has."""
    query = read_query(request, StreamQuery)
    given = _ID.fullmatch(request.header(b"last-event-id").decode("latin-1"))
    after = max(
        0 if query.starting_after is UNSET else query.starting_after, int(given[1]) if given else 0
    )
    job = await visible_job(services, request.caller, job_id)
    if given is not None and given[2] and job.state.final:
        # The client has all events; by the standard a 204 ends its reconnecting.
        return Reply(NO_CONTENT, b"", headers=(NO_STORE,))
    writer = _WRITERS[query.format]()
    if request.method == "HEAD":
        return StreamingReply(200, write_nothing, writer.content_type, STREAM_HEADERS)
    services.stream_limit.take(request.caller.key_id, keyed=services.authenticator is not None)
    send = partial(_send, services, request, job, after, writer)
    return StreamingReply(200, send, writer.content_type, STREAM_HEADERS)


@lru_cache(maxsize=256)
def prefers_events(accept: bytes) -> bool:
    """Return whether an Accept header (RFC 9110, 12.5.1) prefers events to JSON."""
    weights: dict[bytes, float] = {}
    for part in accept.lower().split(b","):
        kind, *parameters = (text.strip() for text in part.split(b";"))
        found = [_WEIGHT.fullmatch(text) for text in parameters]
        weights[kind] = next((float(one[1]) for one in found if one), 1.0)
    return weights.get(EVENT_STREAM, 0.0) > weights.get(JSON, 0.0)


async def submit_and_stream(
    services: Services,
    request: Request,
    submit: Callable[[], Awaitable[tuple[Job, tuple[Header, ...]]]],
) -> StreamingReply:
    """Submit a job and stream its pieces; the job goes on if the client hangs up.

    Args:
        services: those of this process.
        request: the request.
        submit: submits the job; returns it, and headers of the answer.

    Raises:
        TooManyStreams: a limit is reached; nothing was submitted.
        HeadraceError: the job is refused.
    """
    key = request.caller.key_id
    services.stream_limit.take(key, keyed=services.authenticator is not None)
    try:
        job, headers = await submit()
    except BaseException:
        services.stream_limit.leave(key)
        raise
    send = partial(_send, services, request, job, 0, _Events())
    return StreamingReply(200, send, EVENT_STREAM, (*STREAM_HEADERS, *headers))


class Pieces(NamedTuple):
    """New pieces; `last` is the index of the last one."""

    last: int
    pieces: list[msgspec.Raw]


class Restarted(NamedTuple):
    """The job runs again from its beginning: the pieces up to this index no longer count."""

    at: int


class Missing(NamedTuple):
    """These pieces are not in the log any more."""

    first: int
    last: int


class Ended(NamedTuple):
    """The job has ended, after the piece with this index."""

    after: int
    job: Job


PieceEvent = Pieces | Restarted | Missing | Ended


async def follow_pieces(
    services: Services, caller: Caller, job: Job, receive: Receive, *, after: int, most_s: float
) -> AsyncGenerator[list[PieceEvent], None]:
    """Yield what happens to the pieces of a job; an empty list after HEARTBEAT_S of silence.

    The last event is an Ended. It is absent if `most_s` seconds are over, this process stops, or
    the API key of the caller is revoked.

    Args:
        services: those of this process.
        caller: the API key that follows the job.
        job: the job.
        receive: receives `http.disconnect` once the client hangs up.
        after: the index of the last piece that the client has.
        most_s: the seconds after which it ends.

    Raises:
        ClientGone: the client hung up.
    """
    loop = asyncio.get_running_loop()
    ending = asyncio.create_task(wait_for_end(services, job, receive, most_s))
    reader = _LogReader(after)
    try:
        with services.piece_log.follow(job.model, job.id) as follower:
            ending.add_done_callback(lambda _: follower.wake())
            beat_at = loop.time() + HEARTBEAT_S
            while await _still_admitted(services, caller):
                over = ending.done()  # before the read: an ended job's log is complete
                try:
                    entries = await follower.read(reader.after)
                except BrokerError:
                    if over:
                        return
                    await asyncio.sleep(LOOK_AGAIN_S)
                    continue
                if entries:
                    yield reader.events(entries)
                    beat_at = loop.time() + HEARTBEAT_S
                    continue
                if over:
                    try:
                        ended = ending.result()
                    except (JobNotFound, BrokerError):
                        return
                    if ended.state.final:
                        yield [Ended(reader.after, ended)]
                    return
                await follower.woken(beat_at - loop.time())
                if loop.time() >= beat_at:
                    yield []
                    beat_at = loop.time() + HEARTBEAT_S
    finally:
        if not ending.cancel() and not ending.cancelled():
            ending.exception()  # asyncio logs one that was never read


class _LogReader:
    """Turns the entries of a log into events. `after` is the index that the client has."""

    def __init__(self, after: int) -> None:
        self.after = after
        # Whether the client has pieces, from this stream or an earlier one.
        self._has_pieces = after > 0

    def events(self, entries: list[LogEntry]) -> list[PieceEvent]:
        """Return the events of these entries, and count their pieces as sent."""
        marks = [n for n, entry in enumerate(entries) if not entry.pieces]
        events: list[PieceEvent] = []
        if marks:
            # What an earlier attempt wrote counts no more.
            entries = entries[marks[-1] :]
            mark, *entries = entries
            if self._has_pieces:
                events.append(Restarted(mark.last))
            self.after, self._has_pieces = mark.last, False
        pieces: list[msgspec.Raw] = []
        for last, found, _ in entries:
            first = last - len(found) + 1
            if first > self.after + 1:
                if pieces:
                    events.append(Pieces(self.after, pieces))
                    pieces = []
                events.append(Missing(self.after + 1, first - 1))
                self.after = first - 1
            pieces += found[self.after - first + 1 :]
            self.after = last
        if pieces:
            events.append(Pieces(self.after, pieces))
            self._has_pieces = True
        return events


async def _still_admitted(services: Services, caller: Caller) -> bool:
    authenticator = services.authenticator
    return authenticator is None or await authenticator.still_admits(caller)


async def _send(
    services: Services, request: Request, job: Job, after: int, writer: PieceWriter, write: Write
) -> None:
    """Write pieces until the job has ended, the client is gone or this process stops."""
    caller = request.caller
    following = follow_pieces(
        services, caller, job, request.receive,
        after=after, most_s=services.settings.event_stream_max_s,
    )  # fmt: skip
    try:
        async with aclosing(following):
            await put(write, writer.head)
            async for events in following:
                text = b"".join(map(writer.text, events)) if events else writer.heartbeat
                await put(write, text)
                if events and isinstance(events[-1], Ended):
                    return
        writer.broken_off()
    finally:
        services.stream_limit.leave(caller.key_id)


class PieceWriter(Protocol):
    """How the pieces are written.

    A method raises ResponseCutShort where the client would take an incomplete answer for whole.
    """

    content_type: bytes
    head: bytes
    heartbeat: bytes

    def text(self, event: PieceEvent) -> bytes:
        """Return what the client gets for an event."""

    def broken_off(self) -> None:
        """End the stream before the job has ended."""


class _Events:
    content_type = EVENT_STREAM
    head = HEAD
    heartbeat = HEARTBEAT

    def text(self, event: PieceEvent) -> bytes:
        match event:
            case Pieces(last, pieces):
                return frame(str(last), "pieces", msgspec.json.encode(pieces))
            case Restarted(index):
                return frame(str(index), "restarted", b"{}")
            case Missing(first, last):
                return frame(str(last), "missing", b'{"first":%d,"last":%d}' % (first, last))
            case Ended(after, job):
                return frame(f"{after}-ended", "ended", job_object(job))

    def broken_off(self) -> None:
        """The client reconnects, and continues behind the last event."""


class _Lines:
    content_type = NDJSON.encode()
    head = b""
    heartbeat = b"\n"

    def text(self, event: PieceEvent) -> bytes:
        match event:
            case Pieces(last, pieces):
                return b'{"index":%d,"pieces":%s}\n' % (
                    last,
                    without_line_ends(msgspec.json.encode(pieces)),
                )
            case Restarted(index):
                return b'{"index":%d,"restarted":true}\n' % index
            case Missing(first, last):
                return b'{"index":%d,"missing":[%d,%d]}\n' % (last, first, last)
            case Ended(after, job):
                return b'{"index":%d,"job":%s}\n' % (after, without_line_ends(job_object(job)))

    def broken_off(self) -> None:
        """The last line is not that of the job."""


class _Text:
    content_type = b"text/plain; charset=utf-8"
    head = heartbeat = b""

    def text(self, event: PieceEvent) -> bytes:
        if isinstance(event, Pieces):
            return b"".join(map(_text_of, event.pieces))
        if isinstance(event, Ended) and event.job.state is State.SUCCEEDED:
            return b""
        raise ResponseCutShort

    def broken_off(self) -> None:
        raise ResponseCutShort


def _text_of(piece: msgspec.Raw) -> bytes:
    value = msgspec.json.decode(piece)
    return value.encode() if isinstance(value, str) else bytes(piece) + b"\n"


_WRITERS: Final[Mapping[str, Callable[[], PieceWriter]]] = {
    "sse": _Events,
    "ndjson": _Lines,
    "text": _Text,
}
