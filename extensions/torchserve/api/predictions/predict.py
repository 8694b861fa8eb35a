"""The inference interface: predictions, explanations and the health of the server.

A prediction is a job whose request waits for its end. The native API shows it like any other.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from api.components.model_status import NO_WORKER
from api.http.bodies import read_body
from api.http.messages import Answer, ClientGone, Reply, Request, StreamingReply
from api.routes.jobs.job import RETRY_AFTER
from api.routes.jobs.submission import REPLAYED, submit, submit_and_wait
from api.routes.jobs.submit import request_of_body
from api.services import Services
from api.submission.job_request import (
    ValidatedRequest,
    header_text,
    idempotency_key,
    identity_of,
    model_of_version,
    request_trace,
    route,
    with_trace,
)
from api.submission.waiting import ASYNC_APPLIED, preferred_wait_s, prefers_async
from extensions.torchserve.api.parts import Parts, config_of
from extensions.torchserve.api.predictions import inputs
from extensions.torchserve.api.predictions.results import answer_with, job_headers
from extensions.torchserve.api.predictions.sequences import (
    drop_request,
    end_sequences,
    take_request,
)
from extensions.torchserve.api.predictions.streams import cancel_abandoned, submit_and_stream
from extensions.torchserve.api.replies import (
    Kind,
    TorchServeError,
    json_reply,
    reply_to,
    status_reply,
)
from extensions.torchserve.config.archive import TORCHSERVE
from extensions.torchserve.config.model_config import JOB_TICKET, RESPONSE_TIMEOUT, TOO_SMALL
from extensions.torchserve.config.settings import TORCHSERVE_VERSION
from headrace.config.model.catalog import ModelConfig
from headrace.errors import (
    BrokerError,
    HeadraceError,
    InvalidRequest,
    ModelNotFound,
    RequestError,
)
from headrace.jobs.options import DEFAULT_OPTIONS, InputDetails
from headrace.redis import keys
from headrace.schema.serialization import JOBS_PATH, job_object

#: Headers with keys of this server, which no handler needs where they are checked.
_SECRETS: Final = frozenset({b"authorization", b"x-api-key"})
_MODEL_NAME: Final = "model_name"
#: What a handler finds among the headers.
_EXPLAIN: Final = "explain"
_LENGTH: Final = b"content-length"


class Target(NamedTuple):
    """What a prediction asks for.

    Attributes:
        version: "" for none.
        url_path: what follows in the path.
        with_query: the parameters of the query are inputs.
    """

    model: str
    version: str = ""
    url_path: str = ""
    explain: bool = False
    with_query: bool = False


def _oip_json(services: Services, document: Any, status: int = 200) -> Reply:
    """Answer a path of the Open Inference Protocol that needs no model."""
    if not config_of(services).ts_open_inference_protocol:
        raise TorchServeError(
            Kind.NOT_FOUND,
            "the Open Inference Protocol is off. Set ts_open_inference_protocol=true to serve it",
        )
    return json_reply(document, status)


async def oip_server(services: Services, _: Request) -> Reply:
    """Name the server."""
    # The misspelt name is part of the contract.
    extensions = {"extenstion": ["kserve", "kubeflow"]}
    return _oip_json(services, {"name": "Torchserve", "version": TORCHSERVE_VERSION, **extensions})


async def oip_health(what: str, services: Services, _: Request) -> Reply:
    """Return that the server is live, or ready."""
    return _oip_json(services, {what: True})


async def oip_versions(services: Services, _: Request, *_of: str) -> Reply:
    """Refuse a path of one version of a model."""
    document = {"error": "Model versions are not served at this path."}
    return _oip_json(services, document, 501)


async def ping(services: Services, _: Request) -> Reply:
    """Return whether each model has the model processes that it should have, or begins to."""
    statuses = services.model_statuses
    try:
        await statuses.statuses()
    except BrokerError:
        return status_reply("Unhealthy", 500)
    healthy = all(statuses.is_served(model) for model in services.catalog.models.values())
    return status_reply("Healthy") if healthy else status_reply("Unhealthy", 500)


async def invoke(services: Services, request: Request) -> Answer:
    """Predict with the model that the query or the form names, or with the only one."""
    query = request.query(frozenset({_MODEL_NAME}), ignore_unknown=True)
    name = query.get(_MODEL_NAME, "")
    body = await read_body(request, services.settings.body_limit_bytes)
    if not name and len(services.catalog.models) == 1:
        (name,) = services.catalog.models
    if not name:
        content_type = request.header(b"content-type")
        fields = inputs.read_form(body, content_type, inputs.mime_type(content_type))
        named = (one.body for one in fields or () if one.name == _MODEL_NAME)
        name = next(named, b"").decode("utf-8", "replace")
    if not name:
        raise TorchServeError(
            Kind.BAD_REQUEST,
            "the parameter model_name is missing. Send it in the query, because there is more than "
            "one model",
        )
    return await _predict(Target(name, with_query=True), services, request, body)


async def predict_workflow(services: Services, request: Request, name: str) -> Answer:
    """Predict with a pipeline."""
    if name not in services.catalog.pipelines:
        raise TorchServeError(
            Kind.WORKFLOW_NOT_FOUND,
            f"there is no workflow {name[:64]!r}. Workflows are the pipelines of the models file",
        )
    return await predict(services, request, name)


async def predict(
    services: Services,
    request: Request,
    model: str,
    version: str = "",
    url_path: str = "",
    *,
    explain: bool = False,
    with_query: bool = False,
) -> Answer:
    """Predict, or explain, with a model or one version of it."""
    body = await read_body(request, services.settings.body_limit_bytes)
    target = Target(model, version, url_path, explain, with_query)
    return await _predict(target, services, request, body)


async def _predict(target: Target, services: Services, request: Request, body: bytes) -> Answer:
    statuses = services.model_statuses
    await statuses.refresh()
    model = services.catalog.get(target.model)
    if target.version:
        try:
            model = model_of_version(model, target.version, statuses)
        except ModelNotFound as error:
            raise TorchServeError(Kind.VERSION_NOT_FOUND, error.message_with_hint) from None
    try:
        validated = _validated(services, request, model, target, body)
    except HeadraceError as error:
        services.counters.refused(model.name, error.code)
        raise
    stopped = statuses.why_stopped(validated.model)
    if stopped is not None:
        raise _no_worker(services, model, stopped)
    limit_s = validated.model.options.get(TOO_SMALL, {}).get(RESPONSE_TIMEOUT, 1)
    if limit_s <= 0:
        raise TorchServeError(
            Kind.INTERNAL,
            f"model {model.name} cannot answer in its response_timeout of {limit_s} s. Register it "
            "with a longer one",
        )
    async with _ticket(services, validated.model):
        validated = await take_request(services, validated)
        if await statuses.waiting_for(model.name, validated.model.asked_version) is None:
            return await _run(services, request, validated)
        return await _run_while_loadable(services, request, validated)


def _validated(
    services: Services, request: Request, model: ModelConfig, target: Target, body: bytes
) -> ValidatedRequest:
    identity = identity_of(None, idempotency_key(request), owner=request.caller.key_id)
    shadow = None
    if model.traffic is not None and not target.version:
        statuses = services.model_statuses
        model, shadow = route(model, statuses, identity.job_id, None, request.header)
    version = target.version or None
    limit_bytes = services.settings.inline_limit_bytes
    if runs_torchserve(model):
        config = config_of(services)
        given = inputs.read_input(
            request, body, limit_bytes,
            decode=config.decode_input_request, with_query=target.with_query,
        )  # fmt: skip
        added = {"url_path": target.url_path, _EXPLAIN: str(target.explain)}
        if not request.header(_LENGTH):
            # TorchServe adds it to a request without one, such as a GET.
            added[_LENGTH.decode()] = str(len(body))
        headers = handler_headers(services, request, added)
        validated = ValidatedRequest(
            model, given.input if isinstance(given.input, bytes) else b"null", DEFAULT_OPTIONS,
            identity, version, None if isinstance(given.input, bytes) else given.input,
            caller=request.caller, details=InputDetails(headers=headers, nested=given.nested),
        )  # fmt: skip
    else:
        if target.explain and _EXPLAIN not in model.headers:
            raise InvalidRequest(
                f"model {model.name} gives no explanations",
                hint="They need a handler of TorchServe, or one that reads the header explain.",
            )
        declared = model.parameters
        query = request.query(frozenset(declared), ignore_unknown=True) if declared else {}
        header = partial(_header, request, target)
        validated = request_of_body(
            request, model, body, query, DEFAULT_OPTIONS, identity, version, limit_bytes, header
        )
    if shadow is not None:
        validated = msgspec.structs.replace(validated, shadow=shadow)
    services.input_checks.check(validated)
    return with_trace(validated, request_trace(request))


def runs_torchserve(model: ModelConfig) -> bool:
    """Return whether a model runs a handler of TorchServe.

    The handler of a source that this process could not read is unknown: it is taken for one.
    """
    return model.handler.startswith(TORCHSERVE) or not model.handler


def handler_headers(services: Services, request: Request, added: Mapping[str, str]) -> bytes:
    """Return the headers for a handler of TorchServe as JSON, without secrets; `added` ones win."""
    found = {
        name.decode("latin-1"): header_text(value)
        for name, value in request.headers
        if not (services.asks_who_calls and name in _SECRETS)
    }
    return msgspec.json.encode({**found, **added})


def _header(request: Request, target: Target, name: bytes) -> bytes:
    if name == _EXPLAIN.encode():
        return str(target.explain).encode()
    return request.header(name)


def _no_worker(services: Services, model: ModelConfig, reason: str) -> TorchServeError:
    services.counters.refused(model.name, NO_WORKER)
    return TorchServeError(
        Kind.UNAVAILABLE,
        f"model {model.name} has no worker for this request: {reason}. "
        "Scale it up, or correct it and load it again",
    )


async def _run_while_loadable(
    services: Services, request: Request, validated: ValidatedRequest
) -> Answer:
    """Run a request whose model is not loaded, until no worker can load the model."""
    model = validated.model
    statuses = services.model_statuses
    running = asyncio.create_task(_run(services, request, validated))
    failed = asyncio.create_task(statuses.load_failed(model.name, model.asked_version))
    try:
        await asyncio.wait({running, failed}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        running.cancel()
        await asyncio.wait({running})
        await cancel_abandoned(services, validated)
        raise _no_worker(services, model, f"it cannot be loaded: {failed.result()}")
    finally:
        running.cancel()
        failed.cancel()


async def _run(services: Services, request: Request, validated: ValidatedRequest) -> Answer:
    """Submit a job and answer with its result, or with the job if the client asks for that."""
    model, job_id = validated.model, validated.identity.job_id
    prefer = request.header(b"prefer")
    deferred = prefers_async(prefer)
    wait_s = math.inf
    if deferred:
        wait_s = preferred_wait_s(prefer, services.settings.max_wait_s) or 0.0
    try:
        if not deferred and runs_torchserve(model):
            found = await submit_and_stream(services, request, validated)
            if isinstance(found, StreamingReply):
                return found
            job, replayed = found
        elif wait_s:
            job, replayed = await submit_and_wait(services, validated, request.receive, wait_s)
        else:
            job, replayed = await submit(services, validated)
    except ClientGone:
        await cancel_abandoned(services, validated)
        raise
    except HeadraceError as error:
        services.counters.refused(model.name, error.code)
        if isinstance(error, RequestError):
            await drop_request(services, validated)
        reply = reply_to(error)
        # Redis may have taken the job; with the id the client can find out.
        return reply._replace(headers=(*job_headers(job_id), *reply.headers))
    if job.state.final:
        await end_sequences(services, model, job)
    if not deferred or job.state.final:
        return await answer_with(services, request, job, native=not runs_torchserve(model))
    waiting_for = await services.model_statuses.waiting_for(model.name, job.asked_version)
    headers = (
        *job_headers(job_id),
        (b"location", (JOBS_PATH + job_id).encode()),
        ASYNC_APPLIED,
        RETRY_AFTER,
        *((REPLAYED,) if replayed else ()),
    )
    return Reply(202, job_object(job, waiting_for=waiting_for), headers=headers)


@asynccontextmanager
async def _ticket(services: Services, model: ModelConfig) -> AsyncIterator[None]:
    """Hold a ticket for one request, if its model has them (`useJobTicket`).

    A request is taken only if a model process is idle for it. Other API processes take tickets
    too: two requests in the same moment may get the same one.
    """
    if not model.options.get(JOB_TICKET):
        yield
        return
    held = services.of(Parts).tickets
    reports = await services.queue.worker_states()
    (depth,) = await services.queue.depths([keys.queue_name(model.name)])
    ready = sum(
        state.ready
        for report in reports.values()
        for label, state in report.models.items()
        if label.partition(keys.VERSION_SEPARATOR)[0] == model.name
    )
    # A request of this process that is not in Redis yet counts too.
    busy = max(depth.total + depth.in_flight, held[model.name])
    if busy >= ready:
        services.counters.refused(model.name, NO_WORKER)
        raise TorchServeError(
            Kind.UNAVAILABLE,
            f"model {model.name} has {ready} model processes and {busy} requests: none is idle, "
            "and useJobTicket lets no request wait. Try again, or scale it up",
        )
    held[model.name] += 1
    try:
        yield
    finally:
        held[model.name] -= 1
