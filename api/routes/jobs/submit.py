"""Submit a job: an input to a model or to a version of it, or JSON to `/api/v1/jobs`.

The endpoints read the request and write the answer. `api.routes.jobs.submission` submits the job. A
client that prefers events to JSON is answered with the job's pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from api.http.bodies import input_of, is_form, read_body, require_json
from api.http.forms import read_form
from api.http.messages import Header, Reply, Request, StreamingReply
from api.http.problems import problem
from api.routes.jobs.job import RETRY_AFTER
from api.routes.jobs.stream import prefers_events, submit_and_stream
from api.routes.jobs.submission import REPLAYED, location, submit, submit_and_wait, validate
from api.services import Services
from api.submission.decoding import OPTION_NAMES
from api.submission.job_request import (
    SUBMIT,
    HeaderOf,
    JobIdentity,
    ValidatedRequest,
    idempotency_key,
    identity_of,
    model_of_version,
    options_from_query,
    request_from_input,
    request_trace,
    route,
    with_details,
    with_trace,
)
from api.submission.waiting import WaitQuery, preferred_wait_s, query_wait_s
from headrace.config.model.catalog import ModelConfig
from headrace.errors import (
    BrokerUnavailable,
    HeadraceError,
    InvalidRequest,
    RequestError,
    StoreError,
)
from headrace.jobs.options import DEFAULT_OPTIONS, JobOptions
from headrace.schema.serialization import job_object

_JOB_QUERY: Final = frozenset(WaitQuery.__struct_fields__)
_MODEL_QUERY: Final = OPTION_NAMES | _JOB_QUERY
_METADATA: Final = frozenset({"metadata"})

#: The answer to a submit: the job, or the stream of its pieces.
SubmitAnswer = Reply | StreamingReply


async def submit_input(services: Services, request: Request, name: str) -> SubmitAnswer:
    """Submit a job for the model in the path; the body is its input."""
    return await _submit_body(services, request, services.catalog.get(name), None)


async def submit_version_input(
    services: Services, request: Request, name: str, version: str
) -> SubmitAnswer:
    """Submit a job for one version of the model in the path; the body is its input."""
    await services.model_statuses.refresh()
    model = model_of_version(services.catalog.get(name), version, services.model_statuses)
    return await _submit_body(services, request, model, version)


async def _submit_body(
    services: Services, request: Request, model: ModelConfig, version: str | None
) -> SubmitAnswer:
    try:
        identity = identity_of(None, idempotency_key(request), owner=request.caller.key_id)
        shadow = None
        if model.traffic is not None and version is None:
            statuses, metadata = services.model_statuses, _metadata(request)
            model, shadow = route(model, statuses, identity.job_id, metadata, request.header)
        declared = model.parameters
        query = request.query(_MODEL_QUERY.union(declared) if declared else _MODEL_QUERY)
        options = options_from_query(query)
        if options is not DEFAULT_OPTIONS:
            services.webhook_policy.check(options)
        wait_s = query_wait_s(query.get("wait"), services.settings.max_wait_s)
        body = await read_body(request, services.settings.body_limit_bytes)
        validated = request_of_body(
            request, model, body, query, options, identity, version,
            services.settings.inline_limit_bytes, request.header,
        )  # fmt: skip
        if shadow is not None:
            validated = msgspec.structs.replace(validated, shadow=shadow)
        services.input_checks.check(validated)
    except HeadraceError as error:
        services.counters.refused(model.name, error.code)
        raise
    return await _submit(services, request, validated, wait_s)


def _metadata(request: Request) -> Mapping[str, Any] | None:
    """Return the metadata in the query, which is checked later; None if it cannot be read."""
    query = request.query(_METADATA, ignore_unknown=True)
    try:
        return msgspec.json.decode(query.get("metadata", "null"), type=dict[str, Any] | None)
    except (msgspec.DecodeError, RecursionError):
        return None


def request_of_body(
    request: Request,
    model: ModelConfig,
    body: bytes,
    query: Mapping[str, str],
    options: JobOptions,
    identity: JobIdentity,
    version: str | None,
    inline_limit_bytes: int,
    header: HeaderOf,
) -> ValidatedRequest:
    """Return the job whose input is the body of a request.

    Args:
        query: its query, which may have parameters of the model.
        inline_limit_bytes: a longer input becomes a payload.

    Raises:
        InvalidRequest, UnsupportedMedia: the body is no input for this model.
    """
    declared = model.parameters
    content_type = request.header(b"content-type")
    encoding = request.header(b"content-encoding")
    form = None
    if is_form(content_type):
        form = read_form(body, content_type, encoding, declared, inline_limit_bytes)
        given = form.input
    else:
        given = input_of(body, content_type, encoding, inline_limit_bytes)
    job = request_from_input(model, given, options, identity, request.caller, version)
    if form is None and not declared and not model.headers:
        return job
    parameters = {name: query[name] for name in declared if name in query}
    fields = {} if form is None else form.fields
    twice = parameters.keys() & fields.keys()
    if twice:
        raise InvalidRequest(
            f"in the query and in the form: parameter {', '.join(sorted(twice))}",
            hint="Give each parameter once.",
        )
    nested = form is not None and form.nested
    return with_details(job, {**parameters, **fields}, header, nested=nested)


async def submit_job(services: Services, request: Request) -> SubmitAnswer:
    """Submit a job from JSON that names model, input and options."""
    return await _submit_json(services, request, None)


async def put_job(services: Services, request: Request, job_id: str) -> SubmitAnswer:
    """Submit a job from JSON under the id in the path; a repeat returns the same job."""
    return await _submit_json(services, request, job_id)


async def _submit_json(services: Services, request: Request, path_id: str | None) -> SubmitAnswer:
    query = request.query(_JOB_QUERY)
    wait_s = query_wait_s(query.get("wait"), services.settings.max_wait_s)
    require_json(request, "Send JSON, or the input itself to /api/v1/models/{model}/jobs.")
    body = await read_body(request, services.settings.body_limit_bytes)
    fields = SUBMIT.decode(body)
    if path_id is not None and fields.id not in (None, path_id):
        raise InvalidRequest(
            f"the path names the job {path_id[:128]!r} and the body {str(fields.id)[:128]!r}",
            hint="Leave id out of the body.",
        )
    given_id = fields.id if path_id is None else path_id
    identity = identity_of(given_id, idempotency_key(request), owner=request.caller.key_id)
    validated = await validate(services, request, fields, identity)
    return await _submit(services, request, validated, wait_s)


async def _submit(
    services: Services, request: Request, validated: ValidatedRequest, wait_s: float | None
) -> SubmitAnswer:
    validated = with_trace(validated, request_trace(request))
    name, job_id = validated.model.name, validated.identity.job_id
    try:
        accept = request.header(b"accept")
        if accept and prefers_events(accept):
            return await submit_and_stream(services, request, validated)
        return await _submit_and_wait(services, request, validated, wait_s)
    except BrokerUnavailable as error:
        services.counters.refused(name, error.code)
        # Redis may have taken the job; with the id the client can find out.
        return problem(error, request.path, job=job_id)
    except (RequestError, StoreError) as error:
        services.counters.refused(name, error.code)
        raise


async def _submit_and_wait(
    services: Services, request: Request, validated: ValidatedRequest, wait_s: float | None
) -> Reply:
    applied: tuple[Header, ...] = ()
    prefer = request.header(b"prefer")
    if prefer and wait_s is None:
        wait_s = preferred_wait_s(prefer, services.settings.max_wait_s)
    if wait_s is not None:
        applied = ((b"preference-applied", b"wait=%g" % wait_s),)
    if wait_s:
        job, replayed = await submit_and_wait(services, validated, request.receive, wait_s)
    else:
        job, replayed = await submit(services, validated)
    if replayed:
        applied = (REPLAYED, *applied)
    if job.state.final:
        return Reply(200, job_object(job), headers=(location(job), *applied))
    name = validated.model.name
    waiting_for = await services.model_statuses.waiting_for(name, job.asked_version)
    body = job_object(job, waiting_for=waiting_for)
    return Reply(202, body, headers=(location(job), RETRY_AFTER, *applied))
