"""`/v1/chat/completions`, `/v1/completions` and `/v1/embeddings`, by OpenAI's conventions.

Each answer to a prompt, and each vector, is a job. A client that hangs up needs no answer, so its
jobs are cancelled.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from api.http.bodies import read_body, require_json
from api.http.messages import (
    NO_STORE,
    HangUp,
    Reply,
    Request,
    StreamingReply,
    Write,
)
from api.http.openai_errors import envelope
from api.routes.jobs.events import EVENT_STREAM, HEARTBEAT, STREAM_HEADERS, put
from api.routes.jobs.stream import Ended, Missing, PieceEvent, Pieces, Restarted, follow_pieces
from api.routes.openai.jobs import (
    PORTION,
    Following,
    RequestJobs,
    check_success,
    job_requests,
    next_events,
    restarted,
    result_of,
    while_loadable,
)
from api.services import Services
from headrace.errors import (
    HeadraceError,
)
from headrace.jobs.encoding import without_line_ends
from headrace.jobs.job import Job
from headrace.openai.answers import (
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
from headrace.openai.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    OpenAIRequest,
    read_request,
)
from headrace.queue.piece_log import Place
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
    request.query()
    require_json(request)
    asked = read_request(await read_body(request, services.settings.body_limit_bytes), shape)
    jobs = RequestJobs(services, request, asked, await job_requests(services, request, asked))
    try:
        if isinstance(asked, (ChatRequest, CompletionRequest)) and asked.stream:
            return await _start_stream(services, request, asked, jobs)
        ended = await jobs.wait()
        results = [await result_of(services, job) for job in ended]
        created = ended[0].created_us // US_PER_S
        make = partial(_answer_body, asked, jobs.answer_id, created, results)
        # Thousands of vectors take longer than other requests should wait.
        body = make() if jobs.count <= PORTION else await asyncio.to_thread(make)
        return Reply(200, body, headers=(NO_STORE, jobs.request_id))
    except HeadraceError as error:
        return jobs.failed(error)


def _answer_body(
    asked: OpenAIRequest, answer_id: str, created: int, results: Sequence[bytes]
) -> bytes:
    return msgspec.json.encode(answer(asked, answer_id, created, results))


async def _start_stream(
    services: Services,
    request: Request,
    asked: ChatRequest | CompletionRequest,
    jobs: RequestJobs,
) -> Reply | StreamingReply:
    """Begin a stream once the first text is there, so that an error before it has its status."""
    caller = request.caller
    keyed = services.authenticator is not None
    services.stream_limit.take(caller.key_id, keyed=keyed, count=jobs.count)
    client = HangUp(request.receive).__enter__()
    answers: list[_AnswerStream] = []

    async def close(*, ended: bool) -> None:
        for one in answers:
            await one.close()
        client.__exit__()
        services.stream_limit.leave(caller.key_id, jobs.count)
        if not ended:
            await jobs.cancel()

    try:
        submitted = await jobs.submit()
        chunks = Chunks(asked, jobs.answer_id, submitted[0].created_us // US_PER_S)
        for index, job in enumerate(submitted):
            following = follow_pieces(
                services, caller, job, client.receive, after=Place(), most_s=math.inf
            )
            following = while_loadable(services, job, following)
            place = asked.place_of(index, len(submitted))
            answers.append(_AnswerStream(services, asked, chunks, index, place, following))
        await answers[0].begin()
    except BaseException:
        await close(ended=False)
        raise

    async def run(write: Write) -> None:
        ended = False
        try:
            ended = await _write_answers(answers, asked, chunks, write)
        finally:
            await close(ended=ended)

    return StreamingReply(200, run, EVENT_STREAM, (*STREAM_HEADERS, jobs.request_id))


class _AnswerStream:
    """One answer, read while it comes.

    Attributes:
        generation: the whole answer, once it has ended.
    """

    def __init__(
        self,
        services: Services,
        asked: ChatRequest | CompletionRequest,
        chunks: Chunks,
        index: int,
        place: str,
        following: Following,
    ) -> None:
        self._services = services
        self._asked = asked
        self._chunks = chunks
        self._index = index
        self._place = place
        self._following = following
        self._first: list[PieceEvent] = []
        # How long the text is that was sent, and how many log probabilities were.
        self._sent = self._logprobs = 0
        # Whether the next pieces do not follow the pieces that were sent.
        self._gap = False
        self.generation: Generation | None = None

    async def begin(self) -> None:
        """Wait for the first piece, or for a heartbeat.

        Raises:
            ClientGone: the client hung up.
            HeadraceError: the answer ends with an error.
        """
        self._first = await next_events(self._following)
        for event in self._first:
            if isinstance(event, Ended):
                await self._whole(event.job)
            elif isinstance(event, Pieces) and self._asked.likeliest is not None:
                check_logprobs(self._asked, read_part(event.pieces, self._asked.model))

    async def run(self, write: Write) -> None:
        """Write the answer.

        Raises:
            ClientGone: the client hung up.
            HeadraceError: it has failed, or cannot be read to its end.
        """
        role = self._chunks.begin(self._index)
        text = b"" if role is None else _event(role)
        text += await self._text(self._first)
        if text:
            await put(write, text)
        while self.generation is None:
            events = await next_events(self._following)
            await put(write, await self._text(events) or HEARTBEAT)

    async def close(self) -> None:
        """Stop following the job."""
        await self._following.aclose()

    async def _text(self, events: list[PieceEvent]) -> bytes:
        parts = []
        for event in events:
            match event:
                case Pieces(_, pieces):
                    if not self._gap:
                        parts.append(self._more(read_part(pieces, self._asked.model)))
                case Restarted():
                    raise restarted()
                case Missing():
                    self._gap = True
                case Ended(_, job):
                    found = await self._whole(job)
                    if self._gap or not self._sent:
                        logprobs = found.logprobs and found.logprobs[self._logprobs :]
                        parts.append(self._more(Part(found.text[self._sent :], logprobs)))
                    parts.append(_event(self._chunks.end(self._index, found.finish)))
                    self.generation = found
        return b"".join(parts)

    async def _whole(self, job: Job) -> Generation:
        """Return the result of the job.

        Raises:
            HeadraceError: it has failed, or its result is no text.
        """
        check_success(job, self._place)
        return read_generation(await result_of(self._services, job), self._asked.model)

    def _more(self, part: Part) -> bytes:
        if not part.text and not part.logprobs:
            return b""
        check_logprobs(self._asked, part)
        chunk = self._chunks.text(self._index, part, self._sent)
        self._sent += len(part.text)
        self._logprobs += len(part.logprobs or ())
        return _event(chunk)


async def _write_answers(
    answers: Sequence[_AnswerStream], asked: ChatRequest | CompletionRequest, chunks: Chunks,
    write: Write,
) -> bool:  # fmt: skip
    """Write answers at the same time, and the end of the stream; return whether they succeeded."""
    lock = asyncio.Lock()

    async def write_alone(data: bytes) -> None:
        async with lock:
            await write(data)

    tasks = [asyncio.create_task(one.run(write_alone)) for one in answers]
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
        found = [one.generation for one in answers if one.generation is not None]
        end = _event(chunks.usage(usage_of(asked, found))) + end
    await put(write, end)
    return True


def _event(chunk: Answer) -> bytes:
    return b"data: %s\n\n" % without_line_ends(msgspec.json.encode(chunk))
