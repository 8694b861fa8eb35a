"""`/v1/chat/completions`, `/v1/completions` and `/v1/embeddings`, by OpenAI's conventions.

Each answer to a prompt, and each vector, is a job. A client that hangs up needs no answer, so its
jobs are cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from api.http.bodies import read_body, require_json
from api.http.messages import (
    NO_STORE,
    Header,
    Message,
    Receive,
    Reply,
    Request,
    StreamingReply,
    Write,
    hung_up,
)
from api.http.openai_errors import envelope
from api.routes.jobs.events import EVENT_STREAM, HEARTBEAT, STREAM_HEADERS, put
from api.routes.jobs.stream import Ended, Missing, PieceEvent, Pieces, Restarted, follow_pieces
from api.services import Services
from api.submission.job_request import (
    JobIdentity,
    JobRequest,
    ValidatedRequest,
    idempotency_key,
    identity_from_key,
    identity_of,
    request_trace,
    with_trace,
)
from api.submission.submit import submit, submit_and_wait, validate
from headrace.errors import (
    BrokerError,
    BrokerUnavailable,
    HandlerError,
    HeadraceError,
    ReplicaLost,
)
from headrace.jobs.failure import error_of
from headrace.jobs.ids import new_id
from headrace.jobs.job import Job
from headrace.jobs.serialization import raw_result
from headrace.openai.answers import Answer, Chunks, Generation, answer, read_generation, usage_of
from headrace.openai.errors import failure_of
from headrace.openai.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    OpenAIRequest,
    read_request,
)
from headrace.redis.clock import US_PER_S

logger = logging.getLogger(__name__)

#: OpenAI's SDK repeats a request after any status from 500 on, unless this header forbids it.
_NO_RETRY: Final[Header] = (b"x-should-retry", b"false")
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
    jobs = RequestJobs(services, request, await _job_requests(services, request, asked))
    try:
        if isinstance(asked, (ChatRequest, CompletionRequest)) and asked.stream:
            return await _start_stream(services, request, asked, jobs)
        ended = await jobs.wait()
        results = [await _result(services, job) for job in ended]
        created = ended[0].created_us // US_PER_S
        body = msgspec.json.encode(answer(asked, jobs.answer_id, created, results))
        return Reply(200, body, headers=(NO_STORE, jobs.request_id))
    except HeadraceError as error:
        if error.retryable or error.status < 500:
            raise
        reply = envelope(error)
        return reply._replace(headers=(*reply.headers, jobs.request_id, _NO_RETRY))


async def _job_requests(
    services: Services, request: Request, asked: OpenAIRequest
) -> list[ValidatedRequest]:
    """Return the jobs of a request; the first one has the id of the answer."""
    key, options, trace = idempotency_key(request), asked.options(), request_trace(request)
    found = []
    base = f"{asked.id_prefix}{new_id()}"
    for n, value in enumerate(asked.inputs()):
        if not key:
            identity = JobIdentity(f"{base}.{n}" if n else base, chosen=False)
        elif n:
            identity = identity_from_key(f"{key}\0{n}", request.caller.key_id)
        else:
            identity = identity_of(None, key, request.caller.key_id)
        fields = JobRequest(
            model=asked.model, input=msgspec.Raw(msgspec.json.encode(value)), options=options
        )
        found.append(with_trace(await validate(services, request, fields, identity), trace))
    return found


class HangUp:
    """Lets several waits notice that their client hangs up; only one of them could receive."""

    def __init__(self, receive: Receive) -> None:
        self._gone = asyncio.Event()
        self._watcher = asyncio.create_task(self._watch(receive))

    async def _watch(self, receive: Receive) -> None:
        await hung_up(receive)
        self._gone.set()

    async def receive(self) -> Message:
        """Wait until the client hangs up."""
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def close(self) -> None:
        """Stop watching."""
        self._watcher.cancel()


class RequestJobs:
    """The jobs of one request.

    They are cancelled if the request ends without them, because nothing else would read their
    results. With an idempotency key they go on: the client may send the request again.

    Attributes:
        answer_id: the id of the answer, which is that of the first job.
        request_id: the header that OpenAI's SDK shows as the id of the request.
    """

    def __init__(
        self, services: Services, request: Request, requests: Sequence[ValidatedRequest]
    ) -> None:
        self._services = services
        self._request = request
        self._requests = requests
        self.answer_id = requests[0].identity.job_id
        self.request_id: Header = (b"x-request-id", self.answer_id.encode())

    async def wait(self) -> list[Job]:
        """Submit the jobs and wait until all of them have succeeded.

        Raises:
            ClientGone: the client hung up.
            BrokerUnavailable: Redis does not answer, or this process stops.
            HeadraceError: a job is refused, or has failed.
        """
        services = self._services
        hang_up = HangUp(self._request.receive)
        waits = [
            asyncio.create_task(submit_and_wait(services, one, hang_up.receive, math.inf))
            for one in self._requests
        ]
        try:
            jobs = []
            for wait in waits:
                job = (await wait).job
                check_success(job)
                jobs.append(job)
        except BaseException:
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)
            await self.cancel()
            raise
        else:
            return jobs
        finally:
            hang_up.close()

    async def submit(self) -> list[Job]:
        """Submit the jobs.

        Raises:
            HeadraceError: a job is refused.
        """
        return [(await submit(self._services, one)).job for one in self._requests]

    async def cancel(self) -> None:
        """Cancel the jobs that have not ended, if no repeat of the request can need them."""
        if self._requests[0].identity.chosen:
            return
        ids = [one.identity.job_id for one in self._requests]
        try:
            await self._services.queue.cancel(ids, self._request.caller.only)
        except BrokerError as error:
            logger.warning("jobs not cancelled: %s", error.message, extra={"job": self.answer_id})


def check_success(job: Job) -> None:
    """Raise the error of a job that has not succeeded.

    Raises:
        BrokerUnavailable: it has not ended.
        HeadraceError: it has failed; a bad input is a bad request.
    """
    if not job.state.final:
        raise _cut_off()
    failure = error_of(job)
    if failure is not None:
        raise failure_of(failure.type, failure.message, retryable=failure.retryable)


async def _result(services: Services, job: Job) -> bytes:
    """Return the JSON of a result, wherever it is stored."""
    if job.stored is None:
        found = raw_result(job)
        return b"null" if found is None else found[0]
    parts, at = [], 0
    while at < job.stored.size:
        parts.append(await services.input_store.read(job.stored, at, job.stored.size - at))
        at += len(parts[-1])
    return b"".join(parts)


Following = AsyncGenerator[list[PieceEvent], None]


async def _start_stream(
    services: Services,
    request: Request,
    asked: ChatRequest | CompletionRequest,
    jobs: RequestJobs,
) -> Reply | StreamingReply:
    """Begin a stream once the first text is there, so that an error before it has its status."""
    caller = request.caller
    services.stream_limit.take(caller.key_id, keyed=services.authenticator is not None)
    hang_up = HangUp(request.receive)
    answers: list[_AnswerStream] = []

    async def close(*, ended: bool) -> None:
        for one in answers:
            await one.close()
        hang_up.close()
        services.stream_limit.leave(caller.key_id)
        if not ended:
            await jobs.cancel()

    try:
        submitted = await jobs.submit()
        chunks = Chunks(asked, jobs.answer_id, submitted[0].created_us // US_PER_S)
        for index, job in enumerate(submitted):
            following = follow_pieces(
                services, caller, job, hang_up.receive, after=0, most_s=math.inf
            )
            answers.append(_AnswerStream(services, asked.model, chunks, index, following))
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
        self, services: Services, model: str, chunks: Chunks, index: int, following: Following
    ) -> None:
        self._services = services
        self._model = model
        self._chunks = chunks
        self._index = index
        self._following = following
        self._first: list[PieceEvent] = []
        self._sent = 0
        # Whether the pieces that come next are not those that follow what was sent.
        self._gap = False
        self.generation: Generation | None = None

    async def begin(self) -> None:
        """Wait for the first piece, or for a heartbeat.

        Raises:
            ClientGone: the client hung up.
            HeadraceError: the answer ends with an error.
        """
        try:
            self._first = await anext(self._following)
        except StopAsyncIteration:
            raise _cut_off() from None
        for event in self._first:
            if isinstance(event, Ended):
                await self._whole(event.job)

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
            try:
                events = await anext(self._following)
            except StopAsyncIteration:
                raise _cut_off() from None
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
                        parts.append(self._more("".join(map(self._delta, pieces))))
                case Restarted():
                    raise ReplicaLost(
                        "the model's process was lost, and the model cannot go on with the answer",
                        hint="Send the request again.",
                    )
                case Missing():
                    self._gap = True
                case Ended(_, job):
                    found = await self._whole(job)
                    if self._gap or not self._sent:
                        parts.append(self._more(found.text[self._sent :]))
                    parts.append(_event(self._chunks.end(self._index, found.finish)))
                    self.generation = found
        return b"".join(parts)

    async def _whole(self, job: Job) -> Generation:
        """Return the result of the job.

        Raises:
            HeadraceError: it has failed, or its result is no text.
        """
        check_success(job)
        return read_generation(await _result(self._services, job), self._model)

    def _more(self, text: str) -> bytes:
        self._sent += len(text)
        return _event(self._chunks.text(self._index, text)) if text else b""

    def _delta(self, piece: msgspec.Raw) -> str:
        try:
            return msgspec.json.decode(piece, type=str)
        except msgspec.MsgspecError:
            raise HandlerError(
                f"model {self._model} streams pieces that are no text; this endpoint needs text"
            ) from None


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
        await put(write_alone, b"data: %s\n\n" % envelope(error).body)
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
    return b"data: %s\n\n" % msgspec.json.encode(chunk)


def _cut_off() -> BrokerUnavailable:
    return BrokerUnavailable(
        "the answer cannot be read to its end: Redis does not answer, or this process stops",
        hint="Send the request again.",
    )
