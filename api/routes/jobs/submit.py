"""Submit one job: `POST /api/v1/models/{model}/jobs`, `POST /api/v1/jobs`, `PUT /api/v1/jobs/{id}`.

Under an id or an idempotency key of the client's a repeat is the same job, whatever became of it.
"""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple

import msgspec

from api.http.bodies import input_of, read_body, require_json
from api.http.messages import Header, Reply, Request
from api.http.problems import problem
from api.services import Services
from api.submission.job_request import (
    SUBMIT,
    ValidatedRequest,
    asked_by,
    asked_with,
    identity_of,
    in_trace,
    model_for,
    read_job_request,
    trace_of,
)
from api.submission.options import OPTION_NAMES, options_from_query
from api.submission.waiting import asked_wait_s, preferred_wait_s, until_ended
from headrace.errors import (
    BrokerError,
    BrokerUnavailable,
    HeadraceError,
    InvalidRequest,
    RequestError,
    StoreError,
)
from headrace.jobs.ids import check_key
from headrace.jobs.job import Job, JobOptions, State
from headrace.jobs.message import InputSource
from headrace.jobs.serialization import JOBS_PATH, job_object
from headrace.queue.ended_job import EndedJob
from headrace.queue.submission import JobSubmission, of_another, repeat_of, submission

NOT_YET: Final[Header] = (b"retry-after", b"1")
REPLAYED: Final[Header] = (b"idempotency-replayed", b"true")
_MODEL_QUERY: Final = OPTION_NAMES | {"wait"}
_JOB_QUERY: Final = frozenset({"wait"})


class AcceptedJob(NamedTuple):
    """A job that a submit has led to.

    Attributes:
        replayed: it is that of an earlier request, as it is now.
    """

    job: Job
    replayed: bool


async def submit_input(services: Services, request: Request, name: str) -> Reply:
    """The body is the input of one job for the model that the path names."""
    model = services.catalog.get(name)
    try:
        query = request.query(_MODEL_QUERY)
        options = options_from_query(query)
        services.webhook_policy.check(options)
        wait_s = asked_wait_s(query.get("wait"), services.settings.max_wait_s)
        identity = identity_of(None, key_of(request), owner=request.caller.key_id)
        body = await read_body(request, services.settings.body_limit_bytes)
        found = input_of(
            body,
            request.header(b"content-type"),
            request.header(b"content-encoding"),
            services.settings.inline_limit_bytes,
        )
    except HeadraceError as error:
        services.counters.refused(name, error.code)
        raise
    asked = asked_with(model, found, options, identity, request.caller)
    return await _submit(services, request, asked, wait_s)


async def submit_job(services: Services, request: Request, _: str) -> Reply:
    """The body is JSON that names model, input and options."""
    return await _submit_json(services, request, None)


async def put_job(services: Services, request: Request, job_id: str) -> Reply:
    """The same under the id in the path: said again, it is the same job."""
    return await _submit_json(services, request, job_id)


def key_of(request: Request) -> str:
    """The idempotency key of a request; "" where it has none.

    Raises:
        InvalidId: it is there and empty, as from a variable that was not set: a repeat would be
            another job.
    """
    key = request.header(b"idempotency-key").decode("latin-1")
    if not key and request.has(b"idempotency-key"):
        check_key(key)
    return key


async def _submit_json(services: Services, request: Request, path_id: str | None) -> Reply:
    query = request.query(_JOB_QUERY)
    wait_s = asked_wait_s(query.get("wait"), services.settings.max_wait_s)
    require_json(request, "Send JSON, or the input itself to /api/v1/models/{model}/jobs.")
    body = await read_body(request, services.settings.body_limit_bytes)
    said = read_job_request(body, SUBMIT)
    model = model_for(services.catalog, said)
    try:
        services.webhook_policy.check(said.options)
        caller = request.caller
        given_id = _one_id(path_id, said.id)
        identity = identity_of(given_id, key_of(request), owner=caller.key_id)
        asked = asked_by(said, model, identity, services.settings.inline_limit_bytes, caller)
    except RequestError as error:
        services.counters.refused(model.name, error.code)
        raise
    return await _submit(services, request, asked, wait_s)


def _one_id(path_id: str | None, body_id: str | None) -> str | None:
    if path_id is not None and body_id is not None and path_id != body_id:
        raise InvalidRequest(
            f"the path names the job {path_id[:128]!r} and the body {body_id[:128]!r}",
            hint="Leave id out of the body.",
        )
    return body_id if path_id is None else path_id


async def _submit(
    services: Services, request: Request, asked: ValidatedRequest, wait_s: float | None
) -> Reply:
    asked = in_trace(asked, trace_of(request))
    applied: tuple[Header, ...] = ()
    prefer = request.header(b"prefer")
    if prefer and wait_s is None:
        wait_s = preferred_wait_s(prefer, services.settings.max_wait_s)
    if wait_s is not None:
        applied = ((b"preference-applied", b"wait=%g" % wait_s),)
    name, job_id = asked.model.name, asked.identity.job_id
    try:
        if wait_s:
            job, replayed = await _ended(services, request, asked, wait_s)
        else:
            job, replayed = await _enqueued(services, asked)
    except BrokerUnavailable as error:
        services.counters.refused(name, error.code)
        # Redis may have taken the job before it fell silent: the id lets the client find out.
        return problem(error, request.path, job=job_id)
    except (RequestError, StoreError) as error:
        services.counters.refused(name, error.code)
        raise
    if replayed:
        applied = (REPLAYED, *applied)
    location = (b"location", (JOBS_PATH + job_id).encode())
    if job.state.final:
        return Reply(200, job_object(job), headers=(location, *applied))
    has_replica = await services.model_statuses.has_ready(name)
    body = job_object(job, has_replica=has_replica)
    return Reply(202, body, headers=(location, NOT_YET, *applied))


async def _enqueued(services: Services, asked: ValidatedRequest, waiter: str = "") -> AcceptedJob:
    """Enqueue the job, or find the one that an earlier request enqueued."""
    if services.spans is None:
        return await _put(services, asked, waiter)
    with services.spans.submit(asked.model.queue, asked.identity.job_id) as trace:
        return await _put(services, in_trace(asked, trace), waiter)


async def _put(services: Services, asked: ValidatedRequest, waiter: str) -> AcceptedJob:
    if not asked.elsewhere:
        return await _submitted(services, asked, waiter, None)
    try:
        kept = await services.input_store.keep(asked)
    except BrokerUnavailable:
        raise
    except HeadraceError as error:
        return await _known(services, asked, error)
    try:
        services.input_store.check_age(kept)
        enqueued = await _submitted(services, asked, waiter, kept.source)
    except BrokerUnavailable:
        # Redis may have taken the job; if not, the sweep deletes its payload.
        raise
    except HeadraceError:
        await services.input_store.drop(kept)
        raise
    if enqueued.replayed:
        await services.input_store.drop(kept)
    return enqueued


async def _known(services: Services, asked: ValidatedRequest, error: HeadraceError) -> AcceptedJob:
    """The job of an earlier request, of which a repeat's input cannot be kept again.

    Raises:
        HeadraceError: the error that this was, where there is no such job.
        Conflict: it is that of another request.
        BrokerUnavailable: Redis does not answer, so that nobody knows.
    """
    job = await services.queue.read(asked.identity.job_id) if asked.identity.chosen else None
    if job is None:
        raise error
    found = repeat_of(job, asked.request_hash, asked.caller)
    if isinstance(found, HeadraceError):
        raise found from None
    return AcceptedJob(found, replayed=True)


async def _submitted(
    services: Services, asked: ValidatedRequest, waiter: str, source: InputSource | None
) -> AcceptedJob:
    job = submission_of(services, asked, services.queue.clock.now_s(), waiter, source)
    while True:
        receipt = await services.queue.submit(job)
        # Where no client can repeat, only a call whose answer was lost did.
        if not (receipt.repeated and asked.identity.chosen):
            services.counters.admitted(asked.model.name)
            return AcceptedJob(fresh_job(asked, receipt.created_us), replayed=False)
        found = await services.queue.read(job.id)
        if found is not None:
            if not asked.caller.may_see(found.key):
                raise of_another(job.id)
            return AcceptedJob(found, replayed=True)
        # Its record ran out between the two, so that the id is free again.


def submission_of(
    services: Services,
    asked: ValidatedRequest,
    now_s: float,
    waiter: str = "",
    source: InputSource | None = None,
    *,
    quiet: bool = False,
) -> JobSubmission:
    """What jobs/submit.lua is given for what was asked."""
    return submission(
        asked.identity.job_id,
        asked.model,
        asked.input_json,
        asked.options,
        now_s=now_s,
        result_ttl_s=services.settings.result_ttl_s,
        waiter=waiter,
        request_hash=asked.request_hash,
        source=source,
        caller=asked.caller,
        quiet=quiet,
        trace=asked.trace,
    )


def fresh_job(asked: ValidatedRequest, created_us: int) -> Job:
    """What there is to say of a job until it is claimed."""
    metadata = asked.options.metadata
    return Job(
        id=asked.identity.job_id,
        model=asked.model.name,
        version=asked.model.version,
        state=fresh_state(asked.options),
        created_us=created_us,
        metadata_json="" if metadata is None else msgspec.json.encode(metadata).decode(),
    )


def fresh_state(options: JobOptions) -> State:
    """The state of a job that was just enqueued."""
    return State.SCHEDULED if options.countdown else State.QUEUED


async def _ended(
    services: Services, request: Request, asked: ValidatedRequest, wait_s: float
) -> AcceptedJob:
    """Enqueue the job and wait for its end; the wait never decides its fate."""
    waiters = services.waiters
    with waiters.own(asked.identity.job_id) as wait:
        enqueued = await _enqueued(services, asked, waiters.api_id)
        if not enqueued.replayed:
            job = enqueued.job
            with services.pending_waits.over(wait, wait_s, request.receive) as vigil:
                try:
                    found = await until_ended(wait, vigil, waiters, services.queue.read)
                except BrokerError:
                    return enqueued
            return AcceptedJob(await _told(services, job, found), replayed=False)
    # Whoever submitted it is told of its end; so is whoever listens for its Celery result.
    if enqueued.job.state.final:
        return enqueued
    try:
        job = await end_of(services, request, enqueued.job, wait_s)
    except BrokerError:
        return enqueued
    return AcceptedJob(job, replayed=True)


async def end_of(services: Services, request: Request, job: Job, wait_s: float) -> Job:
    """Wait for the end of a job that anybody may have submitted."""
    waiters = services.waiters
    async with waiters.foreign(job.id) as wait:
        if job.quiet:
            # Where Redis is away, the record is read when it is back, or when the time is up.
            with contextlib.suppress(BrokerError):
                await services.queue.listen(job.id)
        with services.pending_waits.over(wait, wait_s, request.receive) as vigil:
            # It may have ended before the subscription stood.
            wait.wake()
            found = await until_ended(wait, vigil, waiters, services.queue.read)
    return await _told(services, job, found)


async def _told(services: Services, job: Job, ended: Job | EndedJob) -> Job:
    """The job as it has ended."""
    if isinstance(ended, Job):
        return ended
    if job.model in services.catalog.pipelines:
        # How its stages went stands in its record alone.
        with contextlib.suppress(BrokerError):
            return await services.queue.read(job.id) or _as_ended(job, ended)
    return _as_ended(job, ended)


def _as_ended(job: Job, ended: EndedJob) -> Job:
    return ended.job(job.model, job.version, job.created_us, job.metadata_json)
