"""Submit one job: `POST /api/v1/models/{model}/jobs`, `POST /api/v1/jobs`, `PUT /api/v1/jobs/{id}`.

The endpoints read the request and write the answer. `api.submission.submit` submits the job.
"""

from __future__ import annotations

from typing import Final

from api.http.bodies import input_of, read_body, require_json
from api.http.messages import Header, Reply, Request
from api.http.problems import problem
from api.services import Services
from api.submission.job_request import (
    SUBMIT,
    ValidatedRequest,
    decode_job_request,
    idempotency_key,
    identity_of,
    request_from_input,
    request_from_json,
    request_trace,
    requested_model,
    with_trace,
)
from api.submission.options import OPTION_NAMES, options_from_query
from api.submission.submit import submit, submit_and_wait
from api.submission.waiting import preferred_wait_s, query_wait_s
from headrace.errors import (
    BrokerUnavailable,
    HeadraceError,
    InvalidRequest,
    RequestError,
    StoreError,
)
from headrace.jobs.serialization import JOBS_PATH, job_object

RETRY_AFTER: Final[Header] = (b"retry-after", b"1")
REPLAYED: Final[Header] = (b"idempotency-replayed", b"true")
_MODEL_QUERY: Final = OPTION_NAMES | {"wait"}
_JOB_QUERY: Final = frozenset({"wait"})


async def submit_input(services: Services, request: Request, name: str) -> Reply:
    """Submit a job for the model in the path; the body is its input."""
    model = services.catalog.get(name)
    try:
        query = request.query(_MODEL_QUERY)
        options = options_from_query(query)
        services.webhook_policy.check(options)
        wait_s = query_wait_s(query.get("wait"), services.settings.max_wait_s)
        identity = identity_of(None, idempotency_key(request), owner=request.caller.key_id)
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
    validated = request_from_input(model, found, options, identity, request.caller)
    return await _submit(services, request, validated, wait_s)


async def submit_job(services: Services, request: Request) -> Reply:
    """Submit a job from JSON that names model, input and options."""
    return await _submit_json(services, request, None)


async def put_job(services: Services, request: Request, job_id: str) -> Reply:
    """Submit a job from JSON under the id in the path; a repeat returns the same job."""
    return await _submit_json(services, request, job_id)


async def _submit_json(services: Services, request: Request, path_id: str | None) -> Reply:
    query = request.query(_JOB_QUERY)
    wait_s = query_wait_s(query.get("wait"), services.settings.max_wait_s)
    require_json(request, "Send JSON, or the input itself to /api/v1/models/{model}/jobs.")
    body = await read_body(request, services.settings.body_limit_bytes)
    fields = decode_job_request(body, SUBMIT)
    model = requested_model(services.catalog, fields)
    try:
        services.webhook_policy.check(fields.options)
        caller = request.caller
        given_id = _given_id(path_id, fields.id)
        identity = identity_of(given_id, idempotency_key(request), owner=caller.key_id)
        inline_limit_bytes = services.settings.inline_limit_bytes
        validated = request_from_json(fields, model, identity, inline_limit_bytes, caller)
    except RequestError as error:
        services.counters.refused(model.name, error.code)
        raise
    return await _submit(services, request, validated, wait_s)


def _given_id(path_id: str | None, body_id: str | None) -> str | None:
    if path_id is not None and body_id is not None and path_id != body_id:
        raise InvalidRequest(
            f"the path names the job {path_id[:128]!r} and the body {body_id[:128]!r}",
            hint="Leave id out of the body.",
        )
    return body_id if path_id is None else path_id


async def _submit(
    services: Services, request: Request, validated: ValidatedRequest, wait_s: float | None
) -> Reply:
    validated = with_trace(validated, request_trace(request))
    applied: tuple[Header, ...] = ()
    prefer = request.header(b"prefer")
    if prefer and wait_s is None:
        wait_s = preferred_wait_s(prefer, services.settings.max_wait_s)
    if wait_s is not None:
        applied = ((b"preference-applied", b"wait=%g" % wait_s),)
    name, job_id = validated.model.name, validated.identity.job_id
    try:
        if wait_s:
            job, replayed = await submit_and_wait(services, validated, request.receive, wait_s)
        else:
            job, replayed = await submit(services, validated)
    except BrokerUnavailable as error:
        services.counters.refused(name, error.code)
        # Redis may have taken the job; with the id the client can find out.
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
    return Reply(202, body, headers=(location, RETRY_AFTER, *applied))
