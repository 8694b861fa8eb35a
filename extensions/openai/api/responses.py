"""`/v1/responses`, by OpenAI's conventions: create, retrieve, cancel, delete.

A response is a job, so any API process shows it, and it survives all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from typing_extensions import override

from api.http.messages import Reply, Request, StreamingReply, Write, json_reply
from api.routes.event_stream import (
    EVENT_STREAM,
    HEARTBEAT,
    STREAM_HEADERS,
    EventStream,
    put,
    take_stream,
)
from api.routes.jobs.stream import Ended, PieceEvent, pieces_of
from api.routes.jobs.submission import wait_for_end
from api.services import Services
from api.submission.decoding import read_query
from extensions.openai.api.jobs import (
    RequestJobs,
    check_loadable,
    check_success,
    cut_off,
    first_events,
    read_jobs,
    restarted,
)
from extensions.openai.api.stored_responses import (
    continued,
    drop_include,
    generation_of,
    outcome_of,
    visible_response,
)
from extensions.openai.redis.keys import ITEMS
from extensions.openai.schema.answers import Part, check_logprobs, read_part
from extensions.openai.schema.conversations import as_items, packed, shown_items
from extensions.openai.schema.errors import openai_error
from extensions.openai.schema.requests import OpenAIRequest
from extensions.openai.schema.response_events import (
    HEAD_EVENTS,
    TAIL_EVENTS,
    ResponseEvents,
    TextEvents,
    error_event,
)
from extensions.openai.schema.responses import (
    ResponseDeleted,
    ResponseRequest,
    calls_tools,
    response_of,
)
from extensions.openai.schema.tools import SentCalls
from headrace.errors import Conflict, HeadraceError, TooManyStreams
from headrace.jobs.job import Job
from headrace.jobs.values.encoding import without_line_ends
from headrace.queue.following.piece_log import Missing, Pieces, Place, Restarted

#: Seconds for which a deletion waits until the cancelled job has ended.
_END_S = 5.0


class ResponseQuery(msgspec.Struct):
    """The query of a response."""

    stream: Annotated[bool, Meta(description="Stream its events, from the first one on.")] = False
    starting_after: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="With `stream`: only the events behind this `sequence_number`."),
    ] = None
    include_obfuscation: Annotated[bool, Meta(description="Events are never padded.")] = False


async def create_response(services: Services, request: Request) -> Reply | StreamingReply:
    """Create a response: wait for it, stream it, or let it go on in the background."""
    asked, jobs = await read_jobs(services, request, ResponseRequest, continued)
    if asked.store is not False:
        # Without them nothing can continue it.
        jobs.add_fields(ITEMS, packed(shown_items(jobs.answer_id, as_items(asked.input))))
    try:
        waits = not (asked.stream or asked.background)
        (job,) = await (jobs.wait() if waits else jobs.submit())
        if asked.stream:
            try:
                return await _start_stream(services, request, job, None, jobs)
            except TooManyStreams:
                await jobs.cancel()
                raise
        if waits:
            found = await generation_of(services, job)
            if found is not None:
                check_logprobs(asked, found)
        reply = json_reply((await outcome_of(services, job))[0])
        if asked.store is False:
            await _forget(services, request, job.id)
        return reply._replace(headers=(*reply.headers, jobs.request_id))
    except HeadraceError as error:
        return jobs.failed(error)


async def get_response(
    services: Services, request: Request, response_id: str
) -> Reply | StreamingReply:
    """Return a response, or stream its events."""
    drop_include(request)
    query = read_query(request, ResponseQuery)
    job = await visible_response(services, request, response_id)
    if query.stream and request.method != "HEAD":
        return await _start_stream(services, request, job, query.starting_after, None)
    return json_reply((await outcome_of(services, job))[0])


async def cancel_response(services: Services, request: Request, response_id: str) -> Reply:
    """Cancel a response; one that has ended stays as it is."""
    job = await _cancelled(services, request, response_id)
    if not job.state.final:
        job = await visible_response(services, request, response_id)
    return json_reply((await outcome_of(services, job))[0])


async def delete_response(services: Services, request: Request, response_id: str) -> Reply:
    """Delete a response; one that runs is cancelled first."""
    job = await _cancelled(services, request, response_id)
    if not job.state.final:
        job = await wait_for_end(services, job, request.receive, _END_S)
    if not job.state.final:
        raise Conflict(
            f"the response {job.id} still runs; it is being cancelled",
            hint="Delete it again in a moment.",
        )
    await _forget(services, request, job.id)
    return json_reply(ResponseDeleted(id=job.id))


async def _cancelled(services: Services, request: Request, response_id: str) -> Job:
    """Cancel the job of a response if it runs; return it as it was."""
    request.query()
    job = await visible_response(services, request, response_id)
    if not job.state.final:
        await services.queue.cancel_one(job.id, request.caller.only)
    return job


async def _forget(services: Services, request: Request, job_id: str) -> None:
    await services.queue.forget([job_id], request.caller.only)


async def _start_stream(
    services: Services, request: Request, job: Job, after: int | None, jobs: RequestJobs | None
) -> StreamingReply:
    """Begin the stream of a response; `jobs` are those of the request that has created it.

    After the first text comes, so that an error before it has its status, unless the client only
    reads a response that exists.
    """
    last_piece = _pieces_before(after)
    if calls_tools(job):
        last_piece = 0
    elif job.state.final:
        # So far back that the last piece is read even if the client has the events behind it.
        last_piece = max(0, last_piece - TAIL_EVENTS)
    response = response_of(job)
    # Nothing else reads it, so it ends with its stream.
    attended = jobs is not None and not response.background
    kind = _ToolWriter if calls_tools(job) else _ResponseWriter
    writer = kind(services, job, after, checks_load=attended)
    pieces = pieces_of(services, job, Place(last_piece))
    stream = EventStream(services, request, pieces, writer)
    take_stream(services, request)

    async def close() -> None:
        await stream.close()
        services.stream_limit.leave(request.caller.key_id)
        if jobs is not None and attended and not writer.ended:
            await jobs.cancel()

    try:
        if jobs is not None and attended:
            await _check_first(services, await first_events(services, stream, job), jobs.asked)
    except BaseException:
        await close()
        raise

    async def run(write: Write) -> None:
        try:
            try:
                await stream.run(write)
            except HeadraceError as error:
                await put(write, writer.error(error))
            if writer.ended and not response.store:
                await _forget(services, request, job.id)
        finally:
            await close()

    headers = STREAM_HEADERS if jobs is None else (*STREAM_HEADERS, jobs.request_id)
    return StreamingReply(200, run, EVENT_STREAM, headers)


def _pieces_before(after: int | None) -> int:
    """Return how many pieces a client has that has the events up to this number."""
    return max(0, (after or 0) - HEAD_EVENTS + 1)


async def _check_first(
    services: Services, first: Sequence[PieceEvent], asked: OpenAIRequest
) -> None:
    """Raise a HeadraceError if the response ends with one, in its first events."""
    for event in first:
        if isinstance(event, Ended):
            check_success(event.job, asked)
            await generation_of(services, event.job)
        elif isinstance(event, Pieces) and isinstance(asked, ResponseRequest):
            check_logprobs(asked, read_part(event.pieces, asked.model))


class _ResponseWriter:
    """Writes the events of one response.

    Args:
        after: the number of the last event that the client has; None for none.
        checks_load: the stream ends if no worker can load the model.

    Attributes:
        ended: the last event was written.
    """

    heartbeat = HEARTBEAT

    def __init__(
        self, services: Services, job: Job, after: int | None, *, checks_load: bool
    ) -> None:
        self.ended = False
        self._services = services
        self._job = job
        self._after = -1 if after is None else after
        self._checks_load = checks_load
        self._events = TextEvents(job.id)
        self.head = self._text(self._events.head(response_of(job))) or HEARTBEAT
        # How long the text is that was sent, and how many log probabilities were.
        self._sent = self._logprobs = 0
        self._last = 0
        # Pieces are gone that the client does not have; the rest of the text comes at the end.
        self._gap = False

    async def text(self, events: Sequence[PieceEvent]) -> bytes:
        if not events and self._checks_load:
            await check_loadable(self._services, self._job)
        self._checks_load = self._checks_load and not events
        parts: list[bytes] = []
        for event in events:
            match event:
                case Pieces(Place(last), pieces):
                    parts.append(self._pieces(last, pieces))
                case Restarted(Place(at)):
                    self._restarted(at)
                case Missing(_, Place(last)):
                    self._missing(last)
                case Ended(Place(last), job):
                    parts.append(await self._tail(last, job))
                    self.ended = True
        return b"".join(parts)

    def _pieces(self, last: int, pieces: Sequence[msgspec.Raw]) -> bytes:
        known = _pieces_before(self._after)
        fresh = pieces[max(0, len(pieces) - (last - known)) :] if last > known else []
        part = read_part(fresh, self._job.model)
        self._last = last
        if not part.text or self._gap:
            return b""
        self._sent += len(part.text)
        self._logprobs += len(part.logprobs or ())
        return self._text(self._events.delta(last, part))

    def _restarted(self, at: int) -> None:
        # The events that the client has may come from after it.
        if at == 0 or at > _pieces_before(self._after):
            raise restarted()

    def _missing(self, last: int) -> None:
        # A client with a part of the text gets the whole only in the last events.
        self._gap = self._after < 0

    def end(self) -> None:
        if not self.ended:
            raise cut_off()

    def error(self, error: HeadraceError) -> bytes:
        """Return the event of an error, which ends the stream."""
        number = max(self._last + HEAD_EVENTS, self._after + 1)
        return self._text([error_event(number, openai_error(error).error)])

    async def _tail(self, last: int, job: Job) -> bytes:
        response, found = await outcome_of(self._services, job)
        written = b""
        if found is not None and (self._gap or not self._sent) and self._after < 0:
            # Its handler yields no pieces, or some are not kept any more.
            likely = found.logprobs and found.logprobs[self._logprobs :]
            part = Part(found.text[self._sent :], likely)
            written = self._text(self._events.delta(last + 1, part))
        return written + self._text(self._events.end(last, response, found))

    def _text(self, events: Iterable[dict[str, Any]]) -> bytes:
        return b"".join(
            b"event: %s\ndata: %s\n\n"
            % (event["type"].encode(), without_line_ends(msgspec.json.encode(event)))
            for event in events
            if event["sequence_number"] > self._after
        )


class _ToolWriter(_ResponseWriter):
    """Writes the events of a response that can call tools: all of them again, from the first piece.

    They are numbered by their count, so a client that comes back gets only the later ones.
    """

    def __init__(
        self, services: Services, job: Job, after: int | None, *, checks_load: bool
    ) -> None:
        super().__init__(services, job, after, checks_load=checks_load)
        self._counted = ResponseEvents(job.id)
        self._calls = SentCalls()
        self.head = self._text(self._counted.head(response_of(job))) or HEARTBEAT

    @override
    def _pieces(self, last: int, pieces: Sequence[msgspec.Raw]) -> bytes:
        if self._after > 1 and last - len(pieces) != self._last:
            raise restarted()  # the client may have pieces of an earlier run
        self._last = last
        return b"".join(self._part(read_part([one], self._job.model)) for one in pieces)

    @override
    def _restarted(self, at: int) -> None:
        raise restarted()

    @override
    def _missing(self, last: int) -> None:
        self._gap, self._last = True, last

    @override
    def error(self, error: HeadraceError) -> bytes:
        number = max(self._counted.number, self._after + 1)
        return self._text([error_event(number, openai_error(error).error)])

    def _part(self, part: Part) -> bytes:
        if self._gap:
            return b""
        self._sent += len(part.text)
        self._logprobs += len(part.logprobs or ())
        self._calls.add(part.tool_calls or ())
        return self._text(self._counted.part(part))

    @override
    async def _tail(self, last: int, job: Job) -> bytes:
        response, found = await outcome_of(self._services, job)
        rest = b""
        if found is not None and (self._gap or not (self._sent or self._calls)):
            calls = self._calls.rest(found.tool_calls or ())
            likely = found.logprobs and found.logprobs[self._logprobs :]
            rest = self._text(self._counted.part(Part(found.text[self._sent :], likely, calls)))
            if self._gap and self._after >= 0:
                # How many events the client has of the missing pieces is unknown.
                rest, self._counted.number = b"", max(self._counted.number, self._after + 1)
        rest += self._text(self._counted.tail(response, found))
        if self._after >= self._counted.number:
            raise restarted()  # it has no such event
        return rest
