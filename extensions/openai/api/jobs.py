"""The jobs of a request by OpenAI's conventions: made, waited for, and cancelled with it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from api.http.bodies import read_body, require_json
from api.http.messages import HangUp, Header, Reply, Request
from api.routes.event_stream import EventStream
from api.routes.jobs.stream import PieceEvent
from api.routes.jobs.submission import submit, submit_and_wait, validate
from api.services import Services
from api.submission.job_request import (
    JobIdentity,
    ValidatedRequest,
    idempotency_key,
    identity_from_key,
    identity_of,
    request_trace,
    with_trace,
)
from extensions.openai.api.errors import envelope
from extensions.openai.api.limits import admit_jobs
from extensions.openai.schema.errors import BadField, failure_of
from extensions.openai.schema.requests import OpenAIRequest, Shape, read_request
from headrace.errors import (
    BrokerError,
    BrokerUnavailable,
    HeadraceError,
    InvalidInput,
    ModelNotLoaded,
    ReplicaLost,
)
from headrace.jobs.ids import new_id
from headrace.jobs.job import Job, error_of
from headrace.redis.scripts import Arg, pages_of
from headrace.schema.lines import JobRequest
from headrace.schema.serialization import raw_result

logger = logging.getLogger(__name__)

#: How many jobs of a request are made before other requests get their turn.
PORTION: Final = 64
#: OpenAI's SDK repeats a request after any status from 500 on, unless this header forbids it.
_NO_RETRY: Final[Header] = (b"x-should-retry", b"false")


async def read_jobs(
    services: Services,
    request: Request,
    shape: type[Shape],
    complete: Callable[[Services, Request, Shape], Awaitable[Shape]] | None = None,
) -> tuple[Shape, RequestJobs]:
    """Read a request; return it with its jobs, before they are submitted.

    Args:
        complete: adds what the request only names.

    Raises:
        HeadraceError: the request is refused.
    """
    request.query()
    require_json(request)
    asked = read_request(await read_body(request, services.settings.body_limit_bytes), shape)
    if complete is not None:
        asked = await complete(services, request, asked)
    jobs = await _job_requests(services, request, asked)
    return asked, RequestJobs(services, request, asked, jobs)


async def _job_requests(
    services: Services, request: Request, asked: OpenAIRequest
) -> list[ValidatedRequest]:
    """Return the jobs of a request; the first one has the id of the answer."""
    key, trace = idempotency_key(request), request_trace(request)
    model, options = services.catalog.get(asked.model), asked.options()
    inputs = asked.inputs()
    await admit_jobs(services, request.caller, model, asked, inputs, options, keyed=bool(key))
    jobs: list[ValidatedRequest] = []
    base, before = f"{asked.id_prefix}{new_id()}", b""
    for n, value in enumerate(inputs):
        if n % PORTION == PORTION - 1:
            await asyncio.sleep(0)
        if not key:
            identity = JobIdentity(f"{base}.{n}" if n else base, chosen=False)
        elif n:
            identity = identity_from_key(f"{key}\0{n}", request.caller.key_id)
        else:
            identity = identity_of(None, key, request.caller.key_id)
        if value is before and model.traffic is None:
            jobs.append(msgspec.structs.replace(jobs[-1], identity=identity))
            continue
        before = value
        fields = JobRequest(model=asked.model, input=msgspec.Raw(value), options=options)
        try:
            validated = await validate(services, request, fields, identity)
        except InvalidInput as error:
            bad = BadField(error.message, asked.text_field, hint=error.hint)
            raise at_place(bad, asked.place_of(n, len(inputs))) from None
        jobs.append(with_trace(validated, trace))
    return jobs


def at_place(error: HeadraceError, place: str) -> HeadraceError:
    """Return an error of a job with the text that the job is for; none for a lone one."""
    if place:
        error.message = f"{place}: {error.message}"
    return error


class RequestJobs:
    """The jobs of one request.

    They are cancelled if the request ends without them, because nothing else would read their
    results. With an idempotency key they go on: the client may send the request again.

    Attributes:
        asked: the request.
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
        self.asked = asked
        self._requests = requests
        self.count = len(requests)
        self.answer_id = requests[0].identity.job_id
        self.request_id: Header = (b"x-request-id", self.answer_id.encode())

    def add_fields(self, *fields: Arg) -> None:
        """Add names and values to the record of each job."""
        self._requests = [msgspec.structs.replace(job, fields=fields) for job in self._requests]

    async def wait(self) -> list[Job]:
        """Submit the jobs and wait until all of them have succeeded.

        Raises:
            ClientGone: the client hung up.
            BrokerUnavailable: Redis does not answer, or this process stops.
            HeadraceError: a job is refused, or has failed.
        """
        with HangUp(self._request.receive) as client:
            model = self._requests[0].model
            failed_load = asyncio.create_task(
                self._services.model_statuses.load_failed(model.name, model.asked_version)
            )
            failed_load.add_done_callback(lambda _: client.end_waits())
            waits: list[asyncio.Task[Job]] = []
            failed: list[int] = []
            try:
                for n, job in enumerate(self._requests):
                    waits.append(asyncio.create_task(self._success(n, job, client, failed)))
                    if n % PORTION == PORTION - 1:
                        await asyncio.sleep(0)
                    if failed:
                        # No further job is submitted.
                        await waits[failed[0]]
                return await asyncio.gather(*waits)
            except BaseException as error:
                # A submit on its way must arrive first: a cancel before it would find no job.
                client.end_waits()
                for wait in waits if isinstance(error, asyncio.CancelledError) else ():
                    wait.cancel()
                await asyncio.wait(waits)
                await self.cancel(len(waits))
                if failed_load.done():
                    raise not_loaded(model.name, failed_load.result()) from None
                raise
            finally:
                failed_load.cancel()
                # Their errors hold this frame.
                waits.clear()

    async def _success(
        self, index: int, request: ValidatedRequest, client: HangUp, failed: list[int]
    ) -> Job:
        try:
            job = (await submit_and_wait(self._services, request, client.receive, math.inf)).job
            check_success(job, self.asked, self.asked.place_of(index, self.count))
        except BaseException:
            failed.append(index)
            raise
        return job

    async def submit(self) -> list[Job]:
        """Submit the jobs.

        Raises:
            HeadraceError: a job is refused.
        """
        return [(await submit(self._services, request)).job for request in self._requests]

    def failed(self, error: HeadraceError) -> Reply:
        """Return the answer for an error that no repeat of the request can change.

        Raises:
            HeadraceError: a repeat can help, or OpenAI's SDK would not repeat the request anyway.
        """
        if error.retryable or error.status < 500:
            raise error
        reply = envelope(error)
        return reply._replace(headers=(*reply.headers, self.request_id, _NO_RETRY))

    async def cancel(self, count: int | None = None) -> None:
        """Cancel the jobs that have not ended, if no repeat of the request can need them.

        With `count` only the first ones were submitted.
        """
        if self._requests[0].identity.chosen:
            return
        queue, only = self._services.queue, self._request.caller.only
        ids = [job.identity.job_id for job in self._requests[:count]]
        try:
            for some in pages_of(ids, PORTION):
                # Many clients may hang up at once: these calls share one of the script.
                await asyncio.gather(*(queue.cancel_one(job_id, only) for job_id in some))
        except BrokerError as error:
            logger.warning("jobs not cancelled: %s", error.message, extra={"job": self.answer_id})


def check_success(job: Job, asked: OpenAIRequest, place: str = "") -> None:
    """Raise the error of a job that has not succeeded.

    Args:
        asked: the request for which it was made.
        place: the text that it is for, such as `input[3]`; "" for the only one.

    Raises:
        BrokerUnavailable: it has not ended.
        HeadraceError: it has failed; a bad input is a bad request.
    """
    if not job.state.final:
        raise cut_off()
    failure = error_of(job)
    if failure is not None:
        error = failure_of(
            failure.type, failure.message, retryable=failure.retryable, text_field=asked.text_field
        )
        raise at_place(error, place)


async def result_of(services: Services, job: Job) -> bytes:
    """Return the result of a job as JSON, wherever it is stored."""
    if job.stored is None:
        found = raw_result(job)
        return b"null" if found is None else found[0]
    return await services.input_store.read_whole(job.stored)


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


def not_loaded(model: str, reason: str) -> ModelNotLoaded:
    """Return the error for requests that wait for a model which no worker can load."""
    hint = f"`headrace models {model}` shows the whole error."
    return ModelNotLoaded(f"no worker can load model {model}: {reason}", hint=hint)


async def check_loadable(services: Services, job: Job) -> None:
    """Raise ModelNotLoaded if no worker can load the model of a job."""
    reason = await services.model_statuses.load_error(job.model, job.asked_version)
    if reason:
        raise not_loaded(job.model, reason)


async def first_events(
    services: Services, stream: EventStream[PieceEvent], job: Job
) -> Sequence[PieceEvent]:
    """Wait for the first pieces of a job, or for a heartbeat.

    Raises:
        ClientGone: the client hung up.
        BrokerUnavailable: the stream is over before its job has ended.
        ModelNotLoaded: no worker can load the model.
    """
    events = await stream.begin()
    if events is None:
        raise cut_off()
    if not events:
        await check_loadable(services, job)
    return events
