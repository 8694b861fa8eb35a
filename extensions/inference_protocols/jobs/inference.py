"""A request to infer as a job: which model and options it is for, its wait, and its result."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, NamedTuple

import msgspec

from api.http.bodies import Payload, media_type, typed_input
from api.http.messages import ClientGone, Receive
from api.routes.jobs.submission import AcceptedJob, submit, submit_and_wait
from api.services import Services
from api.submission.job_request import (
    HeaderOf,
    JobIdentity,
    ValidatedRequest,
    identity_of,
    request_from_input,
    route,
    with_details,
    with_trace,
)
from extensions.inference_protocols.settings import NAME, ProtocolSettings
from extensions.inference_protocols.tensors.datatypes import BYTES, joined, no_json
from extensions.inference_protocols.tensors.declarations import OUTPUT, declaration_of
from extensions.inference_protocols.tensors.envelope import Tensor, read_outputs
from extensions.inference_protocols.tensors.requests import (
    InferRequest,
    Unsupported,
    check,
    element_of,
    envelope_of,
)
from headrace.access.api_key import EVERYBODY, Caller
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
from headrace.jobs.trace_context import Trace
from headrace.jobs.values.encoding import binary_input, from_kombu
from headrace.jobs.values.media_types import JSON_TYPE

#: The header, metadata or parameter with the id of the job that a request has made.
JOB: Final = "headrace-job"
#: Parameters of a request that belong to the protocol.
_SEQUENCE, _PRIORITY, _TIMEOUT = "sequence_id", "priority", "timeout"
#: The least important priority of a job.
_PRIORITY_MAX: Final = 9
_US_PER_S: Final = 1_000_000
_TIMEOUT_MAX_US: Final = int(MAX_WAIT_FOR_START_S * _US_PER_S)


def _no_header(_: bytes) -> bytes:
    return b""


class Call(NamedTuple):
    """Where a request comes from.

    Attributes:
        header: returns a header by its name in lower case.
        key: its idempotency key; "" for none.
        receive: of the request, to notice that its client hangs up; None if the caller's task is
            cancelled then.
        waits: the answer has the result.
    """

    caller: Caller = EVERYBODY
    header: HeaderOf = _no_header
    key: str = ""
    receive: Receive | None = None
    waits: bool = True
    trace: Trace | None = None


def job_request(
    services: Services, call: Call, model: ModelConfig, request: InferRequest
) -> ValidatedRequest:
    """Check a request, and return its job.

    Raises:
        InvalidRequest, InvalidInput, InvalidId: it does not fit the model.
    """
    identity = identity_of(None, call.key, owner=call.caller.key_id)
    shadow = None
    if model.traffic is not None and not model.asked_version:
        statuses = services.model_statuses
        model, shadow = route(model, statuses, identity.job_id, None, call.header)
    validated = _with_input(services, call, model, request, identity)
    if model.parameters or model.headers:
        given = {
            name: value for name, value in request.parameters.items() if name in model.parameters
        }
        validated = with_details(validated, given, call.header)
    if shadow is not None:
        validated = msgspec.structs.replace(validated, shadow=shadow)
    return with_trace(validated, call.trace)


def _with_input(
    services: Services, call: Call, model: ModelConfig, request: InferRequest, identity: JobIdentity
) -> ValidatedRequest:
    declared = declaration_of(model)
    rows = check(request, declared)
    limit_bytes = services.settings.inline_limit_bytes
    given: bytes | Payload
    settings = services.settings
    ttl_s = None
    if call.waits and not identity.chosen:
        # Its client has the result then: at 1,000 requests a second, a day's would fill Redis.
        ttl_s = min(settings.of(NAME, ProtocolSettings).answered_ttl_s, settings.result_ttl_s)
    options, version = _options(request, ttl_s), model.asked_version or None
    if declared.native:
        value, kind = element_of(request)
        given = typed_input(value, kind, media_type(kind), limit_bytes)
        validated = request_from_input(model, given, options, identity, call.caller, version)
        services.input_checks.check(validated)
        return validated
    body, kind = envelope_of(request, rows)
    given = Payload(body, kind) if len(body) > limit_bytes else binary_input(body, kind)
    return request_from_input(model, given, options, identity, call.caller, version)


def _options(request: InferRequest, ttl_s: int | None) -> JobOptions:
    parameters = request.parameters
    if not parameters:
        return DEFAULT_OPTIONS if ttl_s is None else JobOptions(result_ttl=ttl_s)
    if parameters.get(_SEQUENCE) not in (None, 0, "", "0"):
        raise Unsupported(
            f"{request.about}sequence_id is not supported: each request may run in another process"
        )
    chosen: dict[str, Any] = {}
    for name in (_PRIORITY, _TIMEOUT):
        value = parameters.get(name, 0)
        if type(value) is not int or value < 0:
            raise no_json(name, "unsigned-integer")
        chosen[name] = value
    priority, timeout_us = chosen[_PRIORITY], chosen[_TIMEOUT]
    return JobOptions(
        priority=min(_PRIORITY_MAX, priority - 1) if priority else DEFAULT_OPTIONS.priority,
        expires=min(timeout_us, _TIMEOUT_MAX_US) / _US_PER_S if timeout_us else None,
        result_ttl=ttl_s,
    )


async def submit_job(services: Services, request: ValidatedRequest) -> AcceptedJob:
    """Submit a job whose client does not wait; errors as for `run`."""
    try:
        return await submit(services, request)
    except HeadraceError as error:
        services.counters.refused(request.model.name, error.code)
        raise


async def run(services: Services, call: Call, request: ValidatedRequest) -> Job:
    """Submit a job and wait for its end. If its client goes, or waits too long, it is cancelled.

    Raises:
        ClientGone: the client hung up.
        JobTimeout: it has not ended within `max_wait_s`.
        HeadraceError: it is refused, or Redis does not answer.
    """
    wait_s = services.settings.max_wait_s
    try:
        job, _ = await submit_and_wait(services, request, call.receive or never, wait_s)
    except (ClientGone, asyncio.CancelledError):
        await asyncio.shield(cancel(services, request))
        raise
    except HeadraceError as error:
        services.counters.refused(request.model.name, error.code)
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


async def never() -> Any:
    """Receive nothing: the task of the caller is cancelled when its client goes."""
    await asyncio.Event().wait()


async def cancel(services: Services, request: ValidatedRequest) -> None:
    """Cancel a job that no client waits for; one with an idempotency key goes on."""
    if not request.identity.chosen:
        with contextlib.suppress(BrokerError):
            await services.queue.cancel_one(request.identity.job_id)


async def result_of(services: Services, job: Job) -> tuple[bytes, str]:
    """Return the result of a job that has ended, with its content type.

    Raises:
        HeadraceError: the job has failed, or its result cannot be read.
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
