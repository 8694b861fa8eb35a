"""The jobs of a request by OpenAI's conventions: made, waited for, and cancelled with it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from api.http.messages import Header, Message, Receive, Reply, Request, hung_up
from api.http.openai_errors import envelope
from api.routes.jobs.stream import PieceEvent
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
    InvalidInput,
    InvalidParameter,
    ReplicaLost,
)
from headrace.jobs.failure import error_of
from headrace.jobs.ids import new_id
from headrace.jobs.job import Job
from headrace.jobs.serialization import raw_result
from headrace.jobs.tokens import estimate
from headrace.openai.errors import failure_of
from headrace.openai.requests import OpenAIRequest

logger = logging.getLogger(__name__)

#: OpenAI's SDK repeats a request after any status from 500 on, unless this header forbids it.
_NO_RETRY: Final[Header] = (b"x-should-retry", b"false")


async def job_requests(
    services: Services, request: Request, asked: OpenAIRequest
) -> list[ValidatedRequest]:
    """Return the jobs of a request; the first one has the id of the answer.

    Raises:
        RequestError: the request is refused.
    """
    key, options, trace = idempotency_key(request), asked.options(), request_trace(request)
    found = []
    base = f"{asked.id_prefix}{new_id()}"
    inputs = asked.inputs()
    for n, value in enumerate(inputs):
        if not key:
            identity = JobIdentity(f"{base}.{n}" if n else base, chosen=False)
        elif n:
            identity = identity_from_key(f"{key}\0{n}", request.caller.key_id)
        else:
            identity = identity_of(None, key, request.caller.key_id)
        fields = JobRequest(
            model=asked.model, input=msgspec.Raw(msgspec.json.encode(value)), options=options
        )
        try:
            validated = await validate(services, request, fields, identity)
        except InvalidInput as error:
            raise at_place(error, asked.place_of(n, len(inputs))) from None
        found.append(with_trace(validated, trace))
    try:
        check_in_flight(asked, found)
        check_tokens(asked, found)
    except InvalidParameter as error:
        services.counters.refused(found[0].model.name, error.code)
        raise
    return found


def at_place(error: HeadraceError, place: str) -> HeadraceError:
    """Return an error of a job with the text that the job is for; none for a lone one."""
    if place:
        error.message = f"{place}: {error.message}"
    return error


def check_in_flight(asked: OpenAIRequest, requests: Sequence[ValidatedRequest]) -> None:
    """Check that their API key may have all jobs of a request in flight together.

    Jobs with an idempotency key stay when the request is refused, so that each repeat adds fewer.

    Raises:
        InvalidParameter: it may not, so that each try would be refused (429).
    """
    caller = requests[0].caller
    if not caller.in_flight or requests[0].identity.chosen or len(requests) <= caller.in_flight:
        return
    raise InvalidParameter(
        f"this request has {len(requests)} jobs, and API key {caller.key_id} may have "
        f"{caller.in_flight} in flight",
        asked.several,
        hint="Send fewer choices or texts in one request. Or use a key with a higher limit, which "
        "an operator creates with `headrace keys create --in-flight`.",
    )


def check_tokens(asked: OpenAIRequest, requests: Sequence[ValidatedRequest]) -> None:
    """Check that the jobs of a request fit into one minute's tokens of their API key together.

    A job alone always fits once none of the tokens is used. Jobs with an idempotency key stay when
    the request is refused, so that each repeat needs fewer tokens.

    Raises:
        InvalidParameter: they do not, so that each try would be refused (429).
    """
    caller, identity = requests[0].caller, requests[0].identity
    limit = caller.tokens_per_minute
    if not limit or len(requests) == 1 or identity.chosen:
        return
    needed = 0
    for one in requests:
        if one.model.counts_tokens:
            stored_bytes = None if one.payload is None else len(one.payload.body)
            model = one.model
            needed += estimate(one.input_json, stored_bytes, model.options, model.handler, limit)[0]
    if needed > limit:
        raise InvalidParameter(
            f"the {len(requests)} jobs of this request need about {needed} tokens together, and "
            f"API key {caller.key_id} has {limit} tokens a minute",
            asked.several,
            hint="Send fewer choices or texts in one request, or each one alone. Or use a key with "
            "a higher limit, which an operator creates with `headrace keys create "
            "--tokens-per-minute`.",
        )


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

    def end_waits(self) -> None:
        """Let all waits end as if the client had hung up."""
        self._gone.set()

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
        self,
        services: Services,
        request: Request,
        asked: OpenAIRequest,
        requests: Sequence[ValidatedRequest],
    ) -> None:
        self._services = services
        self._request = request
        self._asked = asked
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
        hang_up = HangUp(self._request.receive)
        waits = [
            asyncio.create_task(self._success(n, one, hang_up))
            for n, one in enumerate(self._requests)
        ]
        try:
            return await asyncio.gather(*waits)
        except BaseException as error:
            # A submit on its way must arrive first: a cancel before it would find no job.
            hang_up.end_waits()
            for wait in waits if isinstance(error, asyncio.CancelledError) else ():
                wait.cancel()
            await asyncio.wait(waits)
            await self.cancel()
            raise
        finally:
            hang_up.close()

    async def _success(self, index: int, request: ValidatedRequest, hang_up: HangUp) -> Job:
        job = (await submit_and_wait(self._services, request, hang_up.receive, math.inf)).job
        check_success(job, self._asked.place_of(index, len(self._requests)))
        return job

    async def submit(self) -> list[Job]:
        """Submit the jobs.

        Raises:
            HeadraceError: a job is refused.
        """
        return [(await submit(self._services, one)).job for one in self._requests]

    def failed(self, error: HeadraceError) -> Reply:
        """Return the answer for an error that no repeat of the request can change.

        Raises:
            HeadraceError: a repeat can help, or OpenAI's SDK would not repeat the request anyway.
        """
        if error.retryable or error.status < 500:
            raise error
        reply = envelope(error)
        return reply._replace(headers=(*reply.headers, self.request_id, _NO_RETRY))

    async def cancel(self) -> None:
        """Cancel the jobs that have not ended, if no repeat of the request can need them."""
        if self._requests[0].identity.chosen:
            return
        queue, only = self._services.queue, self._request.caller.only
        try:
            # Many clients may hang up at once: these calls share one of the script.
            await asyncio.gather(
                *(queue.cancel_one(one.identity.job_id, only) for one in self._requests)
            )
        except BrokerError as error:
            logger.warning("jobs not cancelled: %s", error.message, extra={"job": self.answer_id})


def check_success(job: Job, place: str = "") -> None:
    """Raise the error of a job that has not succeeded.

    Args:
        job: the job.
        place: the text that it is for, such as `input[3]`; "" for the only one.

    Raises:
        BrokerUnavailable: it has not ended.
        HeadraceError: it has failed; a bad input is a bad request.
    """
    if not job.state.final:
        raise cut_off()
    failure = error_of(job)
    if failure is not None:
        found = failure_of(failure.type, failure.message, retryable=failure.retryable)
        raise at_place(found, place)


async def result_of(services: Services, job: Job) -> bytes:
    """Return the result of a job as JSON, wherever it is stored."""
    if job.stored is None:
        found = raw_result(job)
        return b"null" if found is None else found[0]
    parts, at = [], 0
    while at < job.stored.size:
        parts.append(await services.input_store.read(job.stored, at, job.stored.size - at))
        at += len(parts[-1])
    return b"".join(parts)


def cut_off() -> BrokerUnavailable:
    """Return the error for an answer that cannot be read to its end."""
    return BrokerUnavailable(
        "the answer cannot be read to its end: Redis does not answer, or this process stops",
        hint="Send the request again.",
    )


def restarted() -> ReplicaLost:
    """Return the error for an answer that began again."""
    return ReplicaLost(
        "the model's process was lost, and the model cannot go on with the answer",
        hint="Send the request again.",
    )


Following = AsyncGenerator[list[PieceEvent], None]


async def next_events(following: Following) -> list[PieceEvent]:
    """Wait for the next pieces of a job, or for a heartbeat.

    Raises:
        ClientGone: the client hung up.
        BrokerUnavailable: the stream is over before its job has ended.
    """
    try:
        return await anext(following)
    except StopAsyncIteration:
        raise cut_off() from None


def text_of(pieces: Sequence[msgspec.Raw], model: str) -> str:
    """Return pieces of a text as one text.

    Raises:
        HandlerError: a piece is no text.
    """
    try:
        return "".join(msgspec.json.decode(piece, type=str) for piece in pieces)
    except msgspec.MsgspecError:
        raise HandlerError(
            f"model {model} streams pieces that are no text; this endpoint needs text"
        ) from None
