"""A request to infer as a job: which model and options it is for, its wait, and its result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from api.http.bodies import Payload, media_type, typed_input
from api.http.messages import ClientGone, Receive, Request
from api.routes.jobs.submission import submit_and_wait
from api.services import Services
from api.submission.job_request import (
    ValidatedRequest,
    identity_of,
    request_from_input,
    request_trace,
    route,
    with_details,
    with_trace,
)
from api.submission.waiting import prefers_async
from extensions.inference_protocols.settings import NAME, ProtocolSettings
from extensions.inference_protocols.tensors.datatypes import BYTES, joined, no_json
from extensions.inference_protocols.tensors.envelope import Tensor, read_outputs
from extensions.inference_protocols.tensors.requests import (
    OUTPUT,
    InferRequest,
    Unsupported,
    Value,
    check,
    declaration_of,
    element_of,
    envelope_of,
)
from headrace.config.inputs.tensors import TENSORS_TYPE
from headrace.config.model.catalog import ModelConfig
from headrace.errors import (
    BY_CODE,
    BrokerError,
    BrokerUnavailable,
    HandlerError,
    HeadraceError,
    JobTimeout,
)
from headrace.jobs.job import Job, State, error_of
from headrace.jobs.options import DEFAULT_OPTIONS, MAX_WAIT_FOR_START_S, JobOptions
from headrace.jobs.values.encoding import binary_input, from_kombu
from headrace.jobs.values.media_types import JSON_TYPE

#: The header, metadata or parameter with the id of the job that a request has made.
JOB: Final = "headrace-job"
#: The least important priority of a job.
_PRIORITY_MAX: Final = 9
_US_PER_S: Final = 1_000_000
_TIMEOUT_MAX_US: Final = int(MAX_WAIT_FOR_START_S * _US_PER_S)


@contextlib.contextmanager
def counting_refusals(services: Services, model: ModelConfig) -> Iterator[None]:
    """Count an error in the body as a refused submit of a job."""
    try:
        yield
    except HeadraceError as error:
        services.counters.refused(model.name, error.code)
        raise


def job_request(
    services: Services, request: Request, model: ModelConfig, asked: InferRequest, key: str = ""
) -> ValidatedRequest:
    """Check a request, and return its job, with an idempotency key unless that is "".

    It raises InvalidRequest, InvalidInput or InvalidId for what does not fit the model.
    """
    identity = identity_of(None, key, owner=request.caller.key_id)
    shadow, limit_bytes = None, services.settings.inline_limit_bytes
    if model.traffic is not None and not model.asked_version:
        statuses = services.model_statuses
        model, shadow = route(model, statuses, identity.job_id, None, request.header)
    declared = declaration_of(model)
    rows = check(asked, declared)
    answered = not identity.chosen and not prefers_async(request.header(b"prefer"))
    options = _options(services, asked, answered=answered)
    given: bytes | Payload
    if declared.native:
        value, kind = element_of(asked)
        given = typed_input(value, kind, media_type(kind), limit_bytes)
    else:
        body, kind = envelope_of(asked, rows)
        given = Payload(body, kind) if len(body) > limit_bytes else binary_input(body, kind)
    version = model.asked_version or None
    validated = request_from_input(model, given, options, identity, request.caller, version)
    if declared.native:
        services.input_checks.check(validated)
    if model.parameters or model.headers:
        parameters = {n: value for n, value in asked.parameters.items() if n in model.parameters}
        validated = with_details(validated, parameters, request.header)
    if shadow is not None:
        validated = msgspec.structs.replace(validated, shadow=shadow)
    return with_trace(validated, request_trace(request))


def _options(services: Services, asked: InferRequest, *, answered: bool) -> JobOptions:
    parameters, settings, ttl_s = asked.parameters, services.settings, None
    if answered:
        # Its client has the result then: at 1,000 requests a second, a day's would fill Redis.
        ttl_s = min(settings.of(NAME, ProtocolSettings).answered_ttl_s, settings.result_ttl_s)
    if not parameters:
        return DEFAULT_OPTIONS if ttl_s is None else JobOptions(result_ttl=ttl_s)
    if parameters.get("sequence_id") not in (None, 0, "", "0"):
        raise Unsupported(
            f"{asked.about}sequence_id is not supported: each request may run in another process"
        )
    priority, timeout_us = (_count(parameters, name) for name in ("priority", "timeout"))
    return JobOptions(
        priority=min(_PRIORITY_MAX, priority - 1) if priority else DEFAULT_OPTIONS.priority,
        expires=min(timeout_us, _TIMEOUT_MAX_US) / _US_PER_S if timeout_us else None,
        result_ttl=ttl_s,
    )


def _count(parameters: Mapping[str, Value], name: str) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or value < 0:
        raise no_json(name, "unsigned-integer")
    return value


async def run(services: Services, request: ValidatedRequest, receive: Receive | None = None) -> Job:
    """Submit a job and wait for its end. If its client goes, or waits too long, it is cancelled.

    Args:
        receive: of the request, to notice that its client hangs up; None if the caller's task is
            cancelled then.

    Raises:
        ClientGone: the client hung up.
        JobTimeout: it has not ended within `max_wait_s`.
        HeadraceError: it is refused, or Redis does not answer.
    """
    wait_s = services.settings.max_wait_s
    try:
        with counting_refusals(services, request.model):
            job, _ = await submit_and_wait(services, request, receive, wait_s)
    except (ClientGone, asyncio.CancelledError):
        await asyncio.shield(cancel(services, request))
        raise
    if not job.state.final:
        await cancel(services, request)
        if services.waiters.closing:
            raise server_stops(job.id)
        raise too_late(job.id, wait_s)
    return job


def too_late(job_id: str, wait_s: float) -> JobTimeout:
    """Return the error for a client that has waited for a job too long."""
    return JobTimeout(f"the job {job_id} did not end within max_wait_s, {wait_s:g} s")


def server_stops(job_id: str) -> BrokerUnavailable:
    """Return the error for a client that waits for a job when the server stops."""
    return BrokerUnavailable(f"the server stops before the job {job_id} has ended. Try again")


async def cancel(services: Services, request: ValidatedRequest) -> None:
    """Cancel a job that no client waits for; one with an idempotency key goes on."""
    if not request.identity.chosen:
        with contextlib.suppress(BrokerError):
            await services.queue.cancel_one(request.identity.job_id)


async def result_of(services: Services, job: Job) -> tuple[bytes, str]:
    """Return the result of a job that has ended, with its content type.

    It raises HeadraceError if the job has failed, or its result cannot be read.
    """
    if job.state is not State.SUCCEEDED:
        failure = error_of(job)
        code, message = (failure.type, failure.message) if failure else ("error", "the job failed")
        raise BY_CODE.get(code, HandlerError)(message)
    if job.stored is not None:
        return await services.input_store.read_whole(job.stored), job.stored.content_type
    text, kind = job.result_json or b"null", job.result_type
    return ((from_kombu(text) or b""), kind) if kind else (text, JSON_TYPE)


async def outputs_of(services: Services, job: Job) -> list[Tensor]:
    """Return the outputs of a job that has ended; errors as for `result_of`."""
    body, kind = await result_of(services, job)
    if kind.partition(";")[0] == TENSORS_TYPE:
        return read_outputs(body, kind)
    return [Tensor(OUTPUT.name, BYTES, [1], joined([body]))]
