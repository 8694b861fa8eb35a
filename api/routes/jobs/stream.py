"""`GET /api/v1/jobs/{id}/stream`: the pieces of a streaming job, while its handler yields them.

The id of an event is the index of its last piece, so any API process can go on where another one
stopped. What a client has not read stays in Redis: this process keeps one number for each client.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.messages import (
    NO_CONTENT,
    NO_STORE,
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
from headrace.errors import BrokerError, JobNotFound
from headrace.jobs.job import Job, State
from headrace.jobs.serialization import job_object
from headrace.queue.piece_log import LogEntry, LogFollower

#: An event id of this operation: the last index, and behind the end of the job a mark.
_ID: Final = re.compile(r"(\d{1,15})(-ended)?")


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
    stream = PieceStream(services, request, job, after, writer)
    return StreamingReply(200, stream.run, writer.content_type, STREAM_HEADERS)


class PieceWriter(Protocol):
    """How the pieces are written.

    A method raises ResponseCutShort where the client would take an incomplete answer for whole.
    """

    content_type: bytes
    head: bytes
    heartbeat: bytes

    def pieces(self, last: int, pieces: list[msgspec.Raw]) -> bytes:
        """Return the pieces up to this index."""

    def restarted(self, index: int) -> bytes:
        """Return that the job runs again from its beginning."""

    def missing(self, first: int, last: int) -> bytes:
        """Return that these pieces are not in the log any more."""

    def ended(self, after: int, job: Job) -> bytes:
        """Return how the job has ended."""

    def broken_off(self) -> None:
        """End the stream before the job has ended."""


class _Events:
    content_type = EVENT_STREAM
    head = HEAD
    heartbeat = HEARTBEAT

    def pieces(self, last: int, pieces: list[msgspec.Raw]) -> bytes:
        return frame(str(last), "pieces", msgspec.json.encode(pieces))

    def restarted(self, index: int) -> bytes:
        return frame(str(index), "restarted", b"{}")

    def missing(self, first: int, last: int) -> bytes:
        return frame(str(last), "missing", b'{"first":%d,"last":%d}' % (first, last))

    def ended(self, after: int, job: Job) -> bytes:
        return frame(f"{after}-ended", "ended", job_object(job))

    def broken_off(self) -> None:
        """The client reconnects, and goes on behind the last event."""


class _Lines:
    content_type = NDJSON.encode()
    head = b""
    heartbeat = b"\n"

    def pieces(self, last: int, pieces: list[msgspec.Raw]) -> bytes:
        return b'{"index":%d,"pieces":%s}\n' % (last, msgspec.json.encode(pieces))

    def restarted(self, index: int) -> bytes:
        return b'{"index":%d,"restarted":true}\n' % index

    def missing(self, first: int, last: int) -> bytes:
        return b'{"index":%d,"missing":[%d,%d]}\n' % (last, first, last)

    def ended(self, after: int, job: Job) -> bytes:
        return b'{"index":%d,"job":%s}\n' % (after, job_object(job))

    def broken_off(self) -> None:
        """The last line is not that of the job."""


class _Text:
    content_type = b"text/plain; charset=utf-8"
    head = heartbeat = b""

    def pieces(self, last: int, pieces: list[msgspec.Raw]) -> bytes:
        return b"".join(_text_of(piece) for piece in pieces)

    def restarted(self, index: int) -> bytes:
        raise ResponseCutShort

    def missing(self, first: int, last: int) -> bytes:
        raise ResponseCutShort

    def ended(self, after: int, job: Job) -> bytes:
        if job.state is not State.SUCCEEDED:
            raise ResponseCutShort
        return b""

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


class PieceStream:
    """One stream, while it is open. `after` is the index that the client has."""

    def __init__(
        self, services: Services, request: Request, job: Job, after: int, writer: PieceWriter
    ) -> None:
        self._services = services
        self._request = request
        self._job = job
        self._after = after
        self._writer = writer
        # Whether the client has pieces, from this stream or an earlier one.
        self._has_pieces = after > 0

    async def run(self, write: Write) -> None:
        """Write pieces until the job has ended, the client is gone or this process stops."""
        services, job = self._services, self._job
        most_s = services.settings.event_stream_max_s
        ending = asyncio.create_task(wait_for_end(services, job, self._request.receive, most_s))
        try:
            with services.piece_log.follow(job.model, job.id) as follower:
                ending.add_done_callback(lambda _: follower.wake())
                await put(write, self._writer.head)
                await self._send_pieces(write, follower, ending)
        finally:
            ending.cancel()
            services.stream_limit.leave(self._request.caller.key_id)

    async def _send_pieces(
        self, write: Write, follower: LogFollower, ending: asyncio.Task[Job]
    ) -> None:
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + HEARTBEAT_S
        while await self._still_admitted():
            over = ending.done()  # before the read: an ended job's log is complete
            try:
                entries = await follower.read(self._after)
            except BrokerError:
                if over:
                    break
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            if entries:
                await put(write, self._text(entries))
                beat_at = loop.time() + HEARTBEAT_S
                continue
            if over:
                try:
                    ended = ending.result()
                except (JobNotFound, BrokerError):
                    break
                if not ended.state.final:
                    break
                await put(write, self._writer.ended(self._after, ended))
                return
            await follower.woken(beat_at - loop.time())
            if loop.time() >= beat_at:
                await put(write, self._writer.heartbeat)
                beat_at = loop.time() + HEARTBEAT_S
        self._writer.broken_off()

    def _text(self, entries: list[LogEntry]) -> bytes:
        """Return what the client gets for these entries, and count them as sent."""
        marks = [n for n, entry in enumerate(entries) if not entry.pieces]
        parts = []
        if marks:
            # What an earlier attempt wrote counts no more.
            entries = entries[marks[-1] :]
            mark, *entries = entries
            if self._has_pieces:
                parts.append(self._writer.restarted(mark.last))
            self._after, self._has_pieces = mark.last, False
        pieces: list[msgspec.Raw] = []
        for last, found in entries:
            first = last - len(found) + 1
            if first > self._after + 1:
                if pieces:
                    parts.append(self._writer.pieces(self._after, pieces))
                    pieces = []
                parts.append(self._writer.missing(self._after + 1, first - 1))
                self._after = first - 1
            pieces += found[self._after - first + 1 :]
            self._after = last
        if pieces:
            parts.append(self._writer.pieces(self._after, pieces))
            self._has_pieces = True
        return b"".join(parts)

    async def _still_admitted(self) -> bool:
        authenticator = self._services.authenticator
        return authenticator is None or await authenticator.still_admits(self._request.caller)
