"""Submit: `POST /api/v1/models/{model}/jobs` and `POST /api/v1/jobs`."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from api.asgi import Header, Reply, Request
from api.bodies import FORM_TYPE, input_of, media_type, not_json, read_body
from api.options import OPTION_NAMES, checked, options_from_query, reworded
from api.problems import problem
from api.services import Services
from api.waits import Vigil, asked_wait_s, preferred_wait_s, until_ended
from api.wire import JOBS_PATH, job_object
from headrace.catalog import ModelConfig
from headrace.errors import (
    BrokerError,
    BrokerUnavailable,
    HeadraceError,
    InvalidRequest,
    ModelNotFound,
    RequestError,
    UnsupportedMedia,
)
from headrace.jobs import DEFAULT_OPTIONS, Job, JobOptions, State, new_id
from headrace.media import is_json
from headrace.submission import submission

NOT_YET: Final[Header] = (b"retry-after", b"1")
_MODEL_QUERY: Final = OPTION_NAMES | {"wait"}
_JOB_QUERY: Final = frozenset({"wait"})


class _JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /api/v1/jobs`."""

    model: str
    input: msgspec.Raw
    version: str | None = None
    options: JobOptions = DEFAULT_OPTIONS


_MEMBERS: Final = frozenset(_JobRequest.__struct_fields__)
_JOB_REQUEST: Final = msgspec.json.Decoder(_JobRequest)


async def submit_input(services: Services, request: Request, name: str) -> Reply:
    """The body is the input of one job for the model that the path names."""
    model = services.catalog.get(name)
    try:
        query = request.query(_MODEL_QUERY)
        options = options_from_query(query)
        wait_s = asked_wait_s(query.get("wait"), services.settings.max_wait_s)
        body = await read_body(request, services.settings.body_limit_bytes)
        input_json = input_of(
            body, request.header(b"content-type"), request.header(b"content-encoding")
        )
    except HeadraceError as error:
        services.counters.refused(name, error.code)
        raise
    return await _submit(services, request, model, input_json, options, wait_s)


async def submit_job(services: Services, request: Request, _: str) -> Reply:
    """The body is JSON that names model, input and options."""
    query = request.query(_JOB_QUERY)
    wait_s = asked_wait_s(query.get("wait"), services.settings.max_wait_s)
    kind = media_type(request.header(b"content-type").decode("latin-1"))
    if kind not in ("", FORM_TYPE) and not is_json(kind):
        raise UnsupportedMedia(
            f"{kind} is not read here",
            hint="Send JSON, or the input itself to /api/v1/models/{model}/jobs.",
        )
    if request.header(b"content-encoding") not in (b"", b"identity"):
        raise UnsupportedMedia(
            "Content-Encoding is not read here", hint="Send the body uncompressed."
        )
    asked = _read_job(await read_body(request, services.settings.body_limit_bytes))
    model = services.catalog.get(asked.model)
    if asked.version is not None and asked.version != model.version:
        raise ModelNotFound(
            f"model {model.name} has no version {asked.version[:64]!r}",
            hint=f"Its version is {model.version}.",
        )
    try:
        options = checked(asked.options)
    except InvalidRequest as error:
        services.counters.refused(model.name, error.code)
        raise
    return await _submit(services, request, model, bytes(asked.input), options, wait_s)


def _read_job(body: bytes) -> _JobRequest:
    try:
        asked = _JOB_REQUEST.decode(body)
        if not body.isascii():
            body.decode()
    except msgspec.ValidationError as error:
        raise reworded(error, "member", _MEMBERS) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error, body) from None
    return asked


async def _submit(
    services: Services,
    request: Request,
    model: ModelConfig,
    input_json: bytes,
    options: JobOptions,
    wait_s: float | None,
) -> Reply:
    applied: tuple[Header, ...] = ()
    prefer = request.header(b"prefer")
    if prefer and wait_s is None:
        wait_s = preferred_wait_s(prefer, services.settings.max_wait_s)
    if wait_s is not None:
        applied = ((b"preference-applied", b"wait=%g" % wait_s),)
    job_id = new_id()
    try:
        if wait_s:
            job = await _ended(services, request, model, job_id, input_json, options, wait_s)
        else:
            job = await _enqueued(services, model, job_id, input_json, options)
    except BrokerUnavailable as error:
        services.counters.refused(model.name, error.code)
        # Redis may have taken the job before it fell silent: the id lets the client find out.
        return problem(error, request.path, job=job_id)
    except RequestError as error:
        services.counters.refused(model.name, error.code)
        raise
    location = (b"location", (JOBS_PATH + job_id).encode())
    if job.state.final:
        return Reply(200, job_object(job), headers=(location, *applied))
    has_replica = await services.fleet.has_ready(model.name)
    body = job_object(job, has_replica=has_replica)
    return Reply(202, body, headers=(location, NOT_YET, *applied))


async def _enqueued(
    services: Services,
    model: ModelConfig,
    job_id: str,
    input_json: bytes,
    options: JobOptions,
    waiter: str = "",
) -> Job:
    """Enqueue the job; what there is to say of it until it is claimed."""
    job = submission(
        job_id,
        model,
        input_json,
        options,
        now_s=time.time(),
        result_ttl_s=services.settings.result_ttl_s,
        waiter=waiter,
    )
    receipt = await services.queue.submit(job)
    services.counters.admitted(model.name)
    metadata = options.metadata
    return Job(
        id=job_id,
        model=model.name,
        version=model.version,
        state=State.SCHEDULED if options.countdown else State.QUEUED,
        created_us=receipt.created_us,
        metadata_json="" if metadata is None else msgspec.json.encode(metadata).decode(),
    )


async def _ended(
    services: Services,
    request: Request,
    model: ModelConfig,
    job_id: str,
    input_json: bytes,
    options: JobOptions,
    wait_s: float,
) -> Job:
    """Enqueue the job and wait for its end; the wait never decides its fate."""
    waiters = services.waiters
    with waiters.own(job_id) as wait:
        job = await _enqueued(services, model, job_id, input_json, options, waiters.api_id)
        with Vigil(wait, wait_s, request.receive) as vigil:
            try:
                found = await until_ended(wait, vigil, waiters, services.queue.read)
            except BrokerError:
                return job
    if isinstance(found, Job):
        return found
    return found.job(job.model, job.version, job.created_us, job.metadata_json)
