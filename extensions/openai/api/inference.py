"""`/v1/chat/completions`, `/v1/completions` and `/v1/embeddings`, by OpenAI's conventions.

Each answer to a prompt, and each vector, is a job. A client that hangs up needs no answer, so its
jobs are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from api.http.messages import NO_STORE, HangUp, Reply, Request, StreamingReply, Write
from api.routes.event_stream import (
    EVENT_STREAM,
    HEARTBEAT,
    STREAM_HEADERS,
    EventStream,
    put,
    take_stream,
)
from api.routes.jobs.stream import Ended, PieceEvent, pieces_of
from api.services import Services
from extensions.openai.api.errors import envelope
from extensions.openai.api.jobs import (
    PORTION,
    RequestJobs,
    check_loadable,
    check_success,
    cut_off,
    first_events,
    read_jobs,
    restarted,
    result_of,
)
from extensions.openai.schema.answers import (
    Answer,
    Chunks,
    Generation,
    Part,
    answer,
    check_logprobs,
    read_generation,
    read_part,
    usage_of,
)
from extensions.openai.schema.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    OpenAIRequest,
)
from extensions.openai.schema.tools import SentCalls
from headrace.errors import HeadraceError
from headrace.jobs.job import Job
from headrace.jobs.values.encoding import without_line_ends
from headrace.queue.following.piece_log import Missing, Pieces, Place, Restarted
from headrace.redis.clock import US_PER_S

_DONE: Final = b"data: [DONE]\n\n"


async def create_chat_completion(services: Services, request: Request) -> Reply | StreamingReply:
    """Answer a chat."""
    return await _create(services, request, ChatRequest)


async def create_completion(services: Services, request: Request) -> Reply | StreamingReply:
    """Continue prompts."""
    return await _create(services, request, CompletionRequest)


async def create_embeddings(services: Services, request: Request) -> Reply | StreamingReply:
    """Return vectors of texts."""
    return await _create(services, request, EmbeddingRequest)


async def _create(
    services: Services, request: Request, shape: type[OpenAIRequest]
) -> Reply | StreamingReply:
    asked, jobs = await read_jobs(services, request, shape)
    try:
        if isinstance(asked, GenerationRequest) and asked.stream:
            return await _start_stream(services, request, asked, jobs)
        ended = await jobs.wait()
        results = [await result_of(services, job) for job in ended]
        created = ended[0].created_us // US_PER_S

        def body_of() -> bytes:
            return msgspec.json.encode(answer(asked, jobs.answer_id, created, results))

        # Thousands of vectors take longer than other requests should wait.
        body = body_of() if jobs.count <= PORTION else await asyncio.to_thread(body_of)
        return Reply(200, body, headers=(NO_STORE, jobs.request_id))
    except HeadraceError as error:
        return jobs.failed(error)


async def _start_stream(
    services: Services, request: Request, asked: GenerationRequest, jobs: RequestJobs
) -> Reply | StreamingReply:
    """Begin a stream once the first text is there, so that an error before it has its status."""
    take_stream(services, request, jobs.count)
    client = HangUp(request.receive).__enter__()
    answers: list[_AnswerWriter] = []
    streams: list[EventStream[PieceEvent]] = []

    async def close(*, ended: bool) -> None:
        for stream in streams:
            await stream.close()
        client.__exit__()
        services.stream_limit.leave(request.caller.key_id, jobs.count)
        if not ended:
            await jobs.cancel()

    try:
        submitted = await jobs.submit()
        chunks = Chunks(asked, jobs.answer_id, submitted[0].created_us // US_PER_S)
        for index, job in enumerate(submitted):
            place = asked.place_of(index, len(submitted))
            writer = _AnswerWriter(services, asked, chunks, job, index, place)
            pieces = pieces_of(services, job, Place())
            answers.append(writer)
            streams.append(EventStream(services, request, pieces, writer, receive=client.receive))
        await answers[0].check(await first_events(services, streams[0], submitted[0]))
    except BaseException:
        await close(ended=False)
        raise

    async def run(write: Write) -> None:
        ended = False
        try:
            ended = await _write_answers(answers, streams, asked, chunks, write)
        finally:
            await close(ended=ended)

    return StreamingReply(200, run, EVENT_STREAM, (*STREAM_HEADERS, jobs.request_id))


class _AnswerWriter:
    """Writes one answer while it comes.

    Attributes:
        generation: the whole answer, once it has ended.
    """

    heartbeat = HEARTBEAT

    def __init__(
        self, services: Services, asked: GenerationRequest, chunks: Chunks, job: Job,
        index: int, place: str,
    ) -> None:  # fmt: skip
        self._services = services
        self._asked = asked
        self._chunks = chunks
        self._job = job
        self._index = index
        self._place = place
        self._begun = False
        role = chunks.begin(index)
        self.head = b"" if role is None else _event(role)
        # How long the text is that was sent, and how many log probabilities were.
        self._sent = self._logprobs = 0
        self._calls = SentCalls()
        # Whether the next pieces do not follow the pieces that were sent.
        self._gap = False
        self.generation: Generation | None = None

    async def check(self, first: Sequence[PieceEvent]) -> None:
        """Raise a HeadraceError if the answer ends with one, in its first events."""
        for event in first:
            if isinstance(event, Ended):
                await self._whole(event.job)
            elif isinstance(event, Pieces) and self._asked.likeliest is not None:
                check_logprobs(self._asked, read_part(event.pieces, self._asked.model))

    async def text(self, events: Sequence[PieceEvent]) -> bytes:
        if not events and not self._begun:
            await check_loadable(self._services, self._job)
        self._begun = self._begun or bool(events)
        parts = []
        for event in events:
            match event:
                case Pieces(pieces=pieces):
                    if not self._gap:
                        parts.append(self._more(read_part(pieces, self._asked.model)))
                case Restarted():
                    raise restarted()
                case Missing():
                    self._gap = True
                case Ended(_, job):
                    found = await self._whole(job)
                    if self._gap or not (self._sent or self._calls):
                        logprobs = found.logprobs and found.logprobs[self._logprobs :]
                        calls = self._calls.rest(found.tool_calls or ())
                        parts.append(self._more(Part(found.text[self._sent :], logprobs, calls)))
                    parts.append(_event(self._chunks.end(self._index, found.finish)))
                    self.generation = found
        return b"".join(parts)

    def end(self) -> None:
        if self.generation is None:
            raise cut_off()

    async def _whole(self, job: Job) -> Generation:
        check_success(job, self._asked, self._place)
        return read_generation(await result_of(self._services, job), self._asked.model)

    def _more(self, part: Part) -> bytes:
        if not (part.text or part.logprobs or part.tool_calls):
            return b""
        check_logprobs(self._asked, part)
        # Some clients read the first call of a chunk alone.
        calls = part.tool_calls or []
        parts = [Part(part.text, part.logprobs, calls[:1])]
        parts += [Part("", None, [call]) for call in calls[1:]]
        chunks = (self._chunks.text(self._index, chunk, self._sent) for chunk in parts)
        written = b"".join(map(_event, chunks))
        self._sent += len(part.text)
        self._logprobs += len(part.logprobs or ())
        self._calls.add(calls)
        return written


async def _write_answers(
    answers: Sequence[_AnswerWriter], streams: Sequence[EventStream[PieceEvent]],
    asked: GenerationRequest, chunks: Chunks, write: Write,
) -> bool:  # fmt: skip
    """Write answers at the same time, and the end of the stream; return whether they succeeded."""
    lock = asyncio.Lock()

    async def write_alone(data: bytes) -> None:
        async with lock:
            await write(data)

    tasks = [asyncio.create_task(stream.run(write_alone)) for stream in streams]
    try:
        await asyncio.gather(*tasks)
    except HeadraceError as error:
        await put(write_alone, b"data: %s\n\n" % without_line_ends(envelope(error).body))
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    end = _DONE
    if asked.include_usage:
        generations = [writer.generation for writer in answers if writer.generation is not None]
        end = _event(chunks.usage(usage_of(asked, generations))) + end
    await put(write, end)
    return True


def _event(chunk: Answer) -> bytes:
    return b"data: %s\n\n" % without_line_ends(msgspec.json.encode(chunk))
