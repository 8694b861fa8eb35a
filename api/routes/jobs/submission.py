"""Submit a validated request: store a large input, enqueue the job, and wait for its end.

Under an id or an idempotency key of the client a repeat is the same job, whatever its state.
"""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple

import msgspec

from api.http.messages import Header, Receive, Request
from api.services import Services
from api.submission.job_request import (
    JobIdentity,
    ValidatedRequest,
    request_from_json,
    requested_model,
    route,
    trace_id_of,
    with_trace,
)
from api.submission.waiting import PendingWait, until_ended
from headrace.config.model.catalog import ModelConfig
from headrace.errors import BrokerError, BrokerUnavailable, HeadraceError, RequestError
from headrace.jobs.job import Job, State
from headrace.jobs.message import InputSource
from headrace.jobs.options import JobOptions
from headrace.queue.following.waiters import EndedJob
from headrace.queue.submission import (
    Extras,
    JobSubmission,
    SubmitKind,
    answer_to_repeat,
    id_unavailable,
    submission,
)
from headrace.schema.lines import JobRequest
from headrace.schema.serialization import JOBS_PATH

#: Of an answer with the job of an earlier request.
REPLAYED: Final[Header] = (b"idempotency-replayed", b"true")


def location(job: Job) -> Header:
    """Return the header with the path of a job that was submitted."""
    return (b"location", (JOBS_PATH + job.id).encode())


class AcceptedJob(NamedTuple):
    """The job of a submit; `replayed` if an earlier request submitted it."""

    job: Job
    replayed: bool


async def validate(
    services: Services, request: Request, fields: JobRequest, identity: JobIdentity
) -> ValidatedRequest:
    """Check a request in JSON, and choose the version of its model; a refusal is a RequestError."""
    if fields.version is not None:
        await services.model_statuses.refresh()
    model = requested_model(services.catalog, services.model_statuses, fields)
    try:
        return validated(services, request, fields, model, identity)
    except RequestError as error:
        services.counters.refused(model.name, error.code)
        raise


def validated(
    services: Services,
    request: Request,
    fields: JobRequest,
    model: ModelConfig,
    identity: JobIdentity,
) -> ValidatedRequest:
    """Check a request in JSON for a model, whose traffic may choose another version."""
    services.webhook_policy.check(fields.options)
    shadow = None
    if model.traffic is not None and fields.version is None:
        metadata = fields.options.metadata
        statuses = services.model_statuses
        model, shadow = route(model, statuses, identity.job_id, metadata, request.header)
    limit_bytes = services.settings.inline_limit_bytes
    found = request_from_json(fields, model, identity, limit_bytes, request.caller, request.header)
    services.input_checks.check(found)
    return found if shadow is None else msgspec.structs.replace(found, shadow=shadow)


async def submit(services: Services, request: ValidatedRequest, waiter: str = "") -> AcceptedJob:
    """Enqueue the job, or find the job that an earlier request enqueued.

    Raises:
        BrokerUnavailable: Redis does not answer; the job may be queued.
        RequestError: the request is refused.
        StoreError: the input cannot be stored.
    """
    if services.spans is None:
        return await _submit(services, request, waiter)
    with services.spans.submit(request.model.queue, request.identity.job_id) as trace:
        return await _submit(services, with_trace(request, trace), waiter)


async def submit_and_wait(
    services: Services, request: ValidatedRequest, receive: Receive | None, wait_s: float
) -> AcceptedJob:
    """Submit the job and wait for its end; a wait that fails leaves the job as it is.

    Without `receive` the caller notices the hang-up of the client. It raises the errors of
    `submit`, and ClientGone if the client hangs up.
    """
    waiters = services.waiters
    with waiters.own(request.identity.job_id) as wait:
        accepted = await submit(services, request, waiters.api_id)
        if not accepted.replayed:
            created_us = accepted.job.created_us
            wait.submitted(created_us)
            with PendingWait(services.pending_waits, wait, wait_s, receive) as pending:
                try:
                    ended = await until_ended(
                        wait, pending, waiters, services.queue.read, created_us
                    )
                except BrokerError:
                    return accepted
            job = await _ended_job(services, accepted.job, ended)
            return AcceptedJob(job, replayed=False)
    # The end of an earlier request's job is published for that request, not for this.
    if accepted.job.state.final:
        return accepted
    try:
        job = await wait_for_end(services, accepted.job, receive, wait_s)
    except BrokerError:
        return accepted
    return AcceptedJob(job, replayed=True)


async def wait_for_end(services: Services, job: Job, receive: Receive | None, wait_s: float) -> Job:
    """Wait for the end of a job, whichever process submitted it.

    Without `receive` the caller notices the hang-up of the client. After `wait_s` seconds it
    returns the job as it is.

    Raises:
        ClientGone: the client hung up.
        JobNotFound: the job's record is gone.
        BrokerError: Redis does not answer, and the time is up.
    """
    waiters = services.waiters
    async with waiters.foreign(job.id) as wait:
        if job.quiet:
            # While Redis is away this fails; the record is read once it is back.
            with contextlib.suppress(BrokerError):
                await services.queue.listen(job.id)
        with PendingWait(services.pending_waits, wait, wait_s, receive) as pending:
            # The job may have ended before the subscription was confirmed.
            wait.watched(job.created_us)
            ended = await until_ended(wait, pending, waiters, services.queue.read, job.created_us)
    return await _ended_job(services, job, ended)


def submission_of(
    services: Services,
    request: ValidatedRequest,
    now_s: float,
    waiter: str,
    source: InputSource | None,
    deadline_s: float | None = None,
) -> JobSubmission:
    """Return the arguments of jobs/submit.lua for a request; `waiter` is as in `SubmitKind`.

    `now_s` is the time by Redis' clock. `source` is an input that the message does not carry.
    """
    kind = SubmitKind(
        request.model, services.settings.result_ttl_s, request.options, waiter, request.caller
    )
    extras = Extras(
        source=source, trace=request.trace, details=request.details, deadline_s=deadline_s,
        fields=request.fields,
    )  # fmt: skip
    return submission(
        kind, request.identity.job_id, request.input_json,
        now_s=now_s, request_hash=request.request_hash, extras=extras,
    )  # fmt: skip


def fresh_job(request: ValidatedRequest, created_us: int) -> Job:
    """Return a job that was just enqueued, without reading its record."""
    metadata = request.options.metadata
    return Job(
        id=request.identity.job_id,
        model=request.model.name,
        version=request.model.version,
        state=fresh_state(request.options),
        created_us=created_us,
        metadata_json="" if metadata is None else msgspec.json.encode(metadata).decode(),
        asked_version=request.model.asked_version,
        trace_id=trace_id_of(request),
    )


def fresh_state(options: JobOptions) -> State:
    """Return the state of a job that was just enqueued."""
    return State.SCHEDULED if options.countdown else State.QUEUED


async def _submit(services: Services, request: ValidatedRequest, waiter: str) -> AcceptedJob:
    """Store a large input, then enqueue the job; an input that is not needed is deleted."""
    if not request.stored_separately:
        return await _enqueue(services, request, waiter, None)
    try:
        stored = await services.input_store.keep(request)
    except BrokerUnavailable:
        raise
    except HeadraceError as error:
        return await _earlier_job(services, request, error)
    try:
        services.input_store.check_age(stored)
        accepted = await _enqueue(services, request, waiter, stored.source)
    except BrokerUnavailable:
        # Redis may have taken the job; if not, the sweep deletes its payload.
        raise
    except HeadraceError:
        await services.input_store.drop(stored)
        raise
    if accepted.replayed:
        await services.input_store.drop(stored)
    return accepted


async def _earlier_job(
    services: Services, request: ValidatedRequest, error: HeadraceError
) -> AcceptedJob:
    """Return the job of an earlier request whose repeat cannot be stored; or raise `error`."""
    job = await services.queue.read(request.identity.job_id) if request.identity.chosen else None
    if job is None:
        raise error
    earlier = answer_to_repeat(job, request.request_hash, request.caller)
    if isinstance(earlier, HeadraceError):
        raise earlier from None
    return AcceptedJob(earlier, replayed=True)


async def _enqueue(
    services: Services, request: ValidatedRequest, waiter: str, source: InputSource | None
) -> AcceptedJob:
    job = submission_of(services, request, services.queue.clock.now_s(), waiter, source)
    while True:
        receipt = await services.queue.submit(job)
        # Without an id of the client, only a resend after a lost reply can repeat a job.
        if not (receipt.repeated and request.identity.chosen):
            services.counters.admitted(request.model.name, request.model.asked_version)
            if request.shadow is not None and not receipt.repeated:
                services.shadow_copies.offer(request)
            return AcceptedJob(fresh_job(request, receipt.created_us), replayed=False)
        earlier = await services.queue.read(job.id)
        if earlier is not None:
            if not request.caller.may_see(earlier.key):
                raise id_unavailable(job.id)
            return AcceptedJob(earlier, replayed=True)
        # The record expired between the two calls, so the id is free again.


async def _ended_job(services: Services, job: Job, ended: Job | EndedJob) -> Job:
    if isinstance(ended, Job):
        return ended
    if job.model in services.catalog.pipelines:
        # Only the record has the stages of a pipeline's job.
        with contextlib.suppress(BrokerError):
            record = await services.queue.read(job.id)
            if record is not None and record.created_us == job.created_us:
                return record
    return ended.job(job.model, job.created_us, job.metadata_json, job.asked_version, job.trace_id)
