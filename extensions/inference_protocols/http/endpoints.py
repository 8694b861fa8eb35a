"""The paths of v2, who may use each, and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import msgspec

from api.auth.authenticator import Open
from api.http.bodies import read_body
from api.http.messages import JSON, NO_STORE, Header, Reply, Request, json_reply
from api.routes.table import Endpoint, Operation
from api.services import Services
from api.submission.job_request import idempotency_key
from api.submission.waiting import prefers_async
from extensions.inference_protocols.http.bodies import LENGTH, read_request, write_response
from extensions.inference_protocols.jobs import inference
from extensions.inference_protocols.jobs.over_http import (
    body_of,
    compressed,
    error_reply,
    leave,
    parsed,
)
from extensions.inference_protocols.models import documents, repository
from extensions.inference_protocols.tensors.requests import (
    declaration_of,
    no_changes,
    no_shared_memory,
)
from headrace.access.api_key import Scope
from headrace.errors import BrokerError, HeadraceError, InvalidRequest

_BINARY: Final = b"application/octet-stream"
_BODY_MAX_BYTES: Final = 256 * 1024
_TRACE: Final = {
    "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0",
    "trace_file": "", "trace_mode": "triton",
}  # fmt: skip
_LOGGING: Final = {
    "log_file": "", "log_info": True, "log_warning": True, "log_error": True,
    "log_verbose_level": 0, "log_format": "default",
}  # fmt: skip


async def _infer(services: Services, request: Request, model: str, version: str = "") -> Reply:
    config = await repository.model_for(services, model, version)
    with inference.counting_refusals(services, config):
        body, length = await body_of(services, request), request.header(LENGTH)
        declared = declaration_of(config)
        asked = await parsed(len(body), read_request, body, length, declared)
        key = idempotency_key(request)
        validated = inference.job_request(services, request, config, asked, key)
    headers: tuple[Header, ...] = ((inference.JOB.encode(), validated.identity.job_id.encode()),)
    try:
        if prefers_async(request.header(b"prefer")):
            return await leave(services, [validated], headers)
        job = await inference.run(services, validated, request.receive)
        tensors = await inference.outputs_of(services, job)
        head = {"id": asked.id} if asked.id else {}
        head |= {"model_name": job.model, "model_version": job.version}
        body, json_bytes = write_response(head, tensors, asked)
    except HeadraceError as error:
        return error_reply(error, headers)
    headers = (NO_STORE, *headers)
    if json_bytes:
        headers = (*headers, (LENGTH, b"%d" % json_bytes))
    if accepts := request.header(b"accept-encoding"):
        codings = {part.partition(b";")[0].strip().lower() for part in accepts.split(b",")}
        if coding := next((name for name in (b"gzip", b"deflate") if name in codings), None):
            body = await parsed(len(body), compressed, body, coding.decode())
            headers = (*headers, (b"content-encoding", coding))
    return Reply(200, body, _BINARY if json_bytes else JSON, headers)


def _shows(document: Callable[..., Awaitable[Any]]) -> Endpoint:
    """Return an endpoint that answers with a document about what its path names."""

    async def endpoint(services: Services, _: Request, *names: str) -> Reply:
        return json_reply(await document(services, *names))

    return endpoint


def _always(reply: Reply) -> Endpoint:
    async def endpoint(_services: Services, _: Request, *_names: str) -> Reply:
        return reply

    return endpoint


def _refuses(error: Callable[[], HeadraceError]) -> Endpoint:
    async def endpoint(_services: Services, _: Request, *_names: str) -> Reply:
        raise error()

    return endpoint


async def _models(services: Services) -> Any:
    return {"models": [model.name for model in services.catalog.served]}


async def _ready(services: Services, _: Request) -> Reply:
    try:
        ready = await repository.all_ready(services)
    except BrokerError as error:
        return error_reply(error)._replace(status=400)
    return json_reply({"ready": ready}, 200 if ready else 400)


async def _model_ready(services: Services, _: Request, model: str, version: str = "") -> Reply:
    config = await repository.ready_model(services, model, version)
    if config is None:
        return error_reply(InvalidRequest("Model version not ready"))
    return json_reply({"name": config.name, "ready": True})


async def _index(services: Services, request: Request) -> Reply:
    only_ready = (await _document(request)).get("ready", False)
    if type(only_ready) is not bool:
        raise InvalidRequest("Invalid value for 'ready': expected a boolean")
    return json_reply(await repository.index_of(services, ready=only_ready))


def _changes(change: Callable[..., Awaitable[None]]) -> Endpoint:
    async def endpoint(services: Services, request: Request, model: str) -> Reply:
        parameters = (await _document(request)).get("parameters")
        await change(services, request.caller, model, parameters)
        return _NOTHING

    return endpoint


async def _document(request: Request) -> dict[str, Any]:
    body = await read_body(request, _BODY_MAX_BYTES, fixed=True)
    if not body.strip():
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"failed to parse the request JSON buffer: {error}") from None


_NOTHING: Final = Reply(200, b"", headers=(NO_STORE,))
_PREFIX: Final = "/v2"
_MODEL: Final = "/v2/models/{model}"
_LOADS: Final = "/v2/repository/models/{model}"


def _routes() -> Iterator[Operation]:
    read, manage = Scope.READ, Scope.MANAGE
    yield Operation("GET", _PREFIX, _shows(documents.server_metadata), Open.ALWAYS)
    yield Operation("GET", "/v2/health/live", _always(json_reply({"live": True})), Open.ALWAYS)
    yield Operation("GET", "/v2/health/ready", _ready, Open.ALWAYS)
    yield Operation("GET", "/v2/models", _shows(_models), read)
    yield Operation("GET", "/v2/models/stats", _shows(documents.statistics_of), read)
    # A model, and a version of it, have the same paths below them.
    for path in (_MODEL, _MODEL + "/versions/{version}"):
        yield Operation("GET", path, _shows(documents.metadata_of), read)
        yield Operation("GET", f"{path}/ready", _model_ready, read)
        yield Operation("GET", f"{path}/config", _shows(documents.config_of), read)
        yield Operation("GET", f"{path}/stats", _shows(documents.statistics_of), read)
        yield Operation("POST", f"{path}/infer", _infer, Scope.SUBMIT)
    yield Operation("POST", "/v2/repository/index", _index, read)
    yield Operation("POST", f"{_LOADS}/load", _changes(repository.load), manage)
    yield Operation("POST", f"{_LOADS}/unload", _changes(repository.unload), manage)
    traces = ("/v2/trace/setting", f"{_MODEL}/trace/setting")
    for path, setting in ((traces[0], _TRACE), (traces[1], _TRACE), ("/v2/logging", _LOGGING)):
        yield Operation("GET", path, _always(json_reply(setting)), read)
        yield Operation("POST", path, _refuses(no_changes), manage)
    # No region of shared memory is ever known.
    for kind in ("systemsharedmemory", "cudasharedmemory"):
        for path in (f"/v2/{kind}", f"/v2/{kind}/region/{{name}}"):
            yield Operation("GET", f"{path}/status", _always(json_reply([])), read)
            yield Operation("POST", f"{path}/register", _refuses(no_shared_memory), manage)
            yield Operation("POST", f"{path}/unregister", _always(_NOTHING), manage)


ROUTES: Final = list(_routes())


def error_for(path: str, error: HeadraceError) -> Reply | None:
    """Return an error of these paths; None for another path."""
    return error_reply(error) if path == _PREFIX or path.startswith(f"{_PREFIX}/") else None
