"""`GET /api/v1/jobs/{id}/stream`: the pieces of a streaming job, while its handler yields them.

The id of an event is the client's place in the log, so any API process can go on where another
stopped. What a client has not read stays in Redis: this process keeps one place for each client.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.messages import (
    JSON,
    NO_CONTENT,
    NO_STORE,
    Reply,
    Request,
    ResponseCutShort,
    StreamingReply,
)
from api.routes.event_stream import (
    EVENT_STREAM,
    HEAD,
    HEARTBEAT,
    EventStream,
    frame,
    stream_events,
    take_stream,
)
from api.routes.jobs.job import visible_job
from api.routes.jobs.submission import REPLAYED, location, submit, wait_for_end
from api.routes.media import NDJSON
from api.services import Services
from api.submission.decoding import read_query
from api.submission.job_request import ValidatedRequest
from headrace.errors import BrokerError, JobNotFound
from headrace.jobs.job import Job, State
from headrace.jobs.values.encoding import without_line_ends
from headrace.queue.following.piece_log import (
    LogEvent,
    LogFollower,
    Missing,
    Pieces,
    Place,
    Restarted,
)
from headrace.schema.serialization import job_object

#: A place in a log: the index of the last piece, and its run.
_PLACE: Final = r"\d{1,15}(?:\.\d{1,20})?"
#: An event id of this operation: the place, and behind the end of the job a mark.
_ID: Final = re.compile(rf"({_PLACE})(-ended)?")
#: The weight of a media type in an Accept header.
_WEIGHT: Final = re.compile(rb"q\s*=\s*([01](?:\.\d{0,3})?)")


class StreamQuery(msgspec.Struct):
    """The query of a stream of pieces."""

    starting_after: Annotated[
        Annotated[str, Meta(pattern=f"^{_PLACE}$")] | UnsetType,
        Meta(
            description="Send only the pieces behind this one: the id of an event, or an index. "
            "With an index alone, the server cannot always see that the job ran again.",
            examples=["17.2874410125"],
        ),
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
    places = [given[1] if given else "0"]
    places += [] if query.starting_after is UNSET else [query.starting_after]
    after = max(map(Place.read, places))
    job = await visible_job(services, request.caller, job_id)
    if given is not None and given[2] and job.state.final:
        # The client has all events; by the standard a 204 ends its reconnecting.
        return Reply(NO_CONTENT, b"", headers=(NO_STORE,))
    writer = _WRITERS[query.format]()
    pieces = pieces_of(services, job, after)
    return stream_events(services, request, pieces, writer, writer.content_type)


@lru_cache(maxsize=256)
def prefers_events(accept: bytes) -> bool:
    """Return whether an Accept header (RFC 9110, 12.5.1) prefers events to JSON."""
    weights: dict[bytes, float] = {}
    for part in accept.lower().split(b","):
        kind, *parameters = (text.strip() for text in part.split(b";"))
        weight_matches = [_WEIGHT.fullmatch(text) for text in parameters]
        weights[kind] = next((float(match[1]) for match in weight_matches if match), 1.0)
    return weights.get(EVENT_STREAM, 0.0) > weights.get(JSON, 0.0)


async def submit_and_stream(
    services: Services, request: Request, validated: ValidatedRequest
) -> StreamingReply:
    """Submit a job and stream its pieces; the job goes on if the client hangs up.

    Raises:
        TooManyStreams: a limit is reached; nothing was submitted.
        HeadraceError: the job is refused.
    """
    take_stream(services, request)
    try:
        job, replayed = await submit(services, validated)
    except BaseException:
        services.stream_limit.leave(request.caller.key_id)
        raise
    most_s = services.settings.event_stream_max_s
    pieces = pieces_of(services, job, Place())
    stream = EventStream(services, request, pieces, _EVENTS(), most_s=most_s)
    return stream.reply(headers=(location(job), *((REPLAYED,) if replayed else ())))


class Ended(NamedTuple):
    """The job has ended, after the piece at this place."""

    place: Place
    job: Job


PieceEvent = LogEvent | Ended


@contextlib.contextmanager
def pieces_of(services: Services, job: Job, after: Place) -> Iterator[_JobPieces]:
    """Return what happens to the pieces of a job, behind the last piece that the client has.

    The last event is an Ended. It is absent if this process stops, or the job's record is gone.
    """
    # The stream notices the hang-up of the client.
    ending = asyncio.create_task(wait_for_end(services, job, None, math.inf))
    try:
        with services.piece_log.follow(job.model, job.id, after) as follower:
            ending.add_done_callback(lambda _: follower.wake())
            yield _JobPieces(follower, ending)
    finally:
        if not ending.cancel() and not ending.cancelled():
            ending.exception()  # asyncio logs one that was never read


class _JobPieces:
    def __init__(self, follower: LogFollower, ending: asyncio.Task[Job]) -> None:
        self._follower = follower
        self._ending = ending
        self.over = False
        self.wake = follower.wake
        self.woken = follower.woken

    async def look(self) -> list[PieceEvent]:
        ended = self._ending.done()  # before the read: an ended job's log is complete
        events: list[PieceEvent] = []
        try:
            events += await self._follower.read()
        except BrokerError:
            self.over = ended
            return []
        if ended and not events:
            self.over = True
            with contextlib.suppress(JobNotFound, BrokerError):
                job = self._ending.result()
                events += [Ended(self._follower.place, job)] if job.state.final else []
        return events


@dataclass
class _PieceWriter:
    """Writes pieces in a format; `cut` if a client would take an incomplete answer for whole."""

    content_type: bytes
    head: bytes
    heartbeat: bytes
    text_of: Callable[[PieceEvent], bytes]
    cut: bool = False

    async def text(self, events: Sequence[PieceEvent]) -> bytes:
        if events and isinstance(events[-1], Ended):
            self.cut = False
        return b"".join(map(self.text_of, events))

    def end(self) -> None:
        if self.cut:
            raise ResponseCutShort


def _event(event: PieceEvent) -> bytes:
    match event:
        case Pieces(place, pieces):
            return frame(str(place), "pieces", msgspec.json.encode(pieces))
        case Restarted(place):
            return frame(str(place), "restarted", b"{}")
        case Missing(first, place):
            data = b'{"first":%d,"last":%d}' % (first, place.piece)
            return frame(str(place), "missing", data)
        case Ended(place, job):
            return frame(f"{place}-ended", "ended", job_object(job))


def _line(event: PieceEvent) -> bytes:
    """Return a line. Without that of the job, a client knows that lines are missing."""
    match event:
        case Pieces(place, pieces):
            more = b'"pieces":%s' % without_line_ends(msgspec.json.encode(pieces))
        case Restarted(place):
            more = b'"restarted":true'
        case Missing(first, place):
            more = b'"missing":[%d,%d]' % (first, place.piece)
        case Ended(place, job):
            more = b'"job":%s' % without_line_ends(job_object(job))
    return b'{"index":%d,"id":"%s",%s}\n' % (place.piece, str(place).encode(), more)


def _plain(event: PieceEvent) -> bytes:
    if isinstance(event, Pieces):
        return b"".join(map(_text_of, event.pieces))
    if isinstance(event, Ended) and event.job.state is State.SUCCEEDED:
        return b""
    raise ResponseCutShort


def _text_of(piece: msgspec.Raw) -> bytes:
    value = msgspec.json.decode(piece)
    return value.encode() if isinstance(value, str) else bytes(piece) + b"\n"


_EVENTS: Final = partial(_PieceWriter, EVENT_STREAM, HEAD, HEARTBEAT, _event)
_WRITERS: Final[Mapping[str, Callable[[], _PieceWriter]]] = {
    "sse": _EVENTS,
    "ndjson": partial(_PieceWriter, NDJSON.encode(), b"", b"\n", _line),
    "text": partial(_PieceWriter, b"text/plain; charset=utf-8", b"", b"", _plain, cut=True),
}
