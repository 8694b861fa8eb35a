"""The paths of v2 besides infer: health, metadata, configuration, statistics, the repository."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from api.http.bodies import read_body
from api.http.messages import NO_STORE, Reply, Request, json_reply
from api.services import Services
from extensions.inference_protocols.jobs.over_http import error_reply
from extensions.inference_protocols.models import repository
from extensions.inference_protocols.models.descriptions import (
    config_of,
    metadata_of,
    server_metadata,
)
from extensions.inference_protocols.models.lookup import all_ready, model_for, ready_model
from extensions.inference_protocols.models.statistics import statistics_of
from extensions.inference_protocols.tensors.requests import Unsupported, no_shared_memory
from headrace.errors import BrokerError, InvalidRequest

_BODY_MAX_BYTES: Final = 256 * 1024
_NOT_READY: Final = InvalidRequest("Model version not ready")
_TRACE: Final = {
    "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0",
    "trace_file": "", "trace_mode": "triton",
}  # fmt: skip
_LOGGING: Final = {
    "log_file": "", "log_info": True, "log_warning": True, "log_error": True,
    "log_verbose_level": 0, "log_format": "default",
}  # fmt: skip
Fixed = Callable[[Services, Request], Awaitable[Reply]]


async def server(services: Services, _: Request) -> Reply:
    """Return name, version and extensions of the server."""
    return json_reply(server_metadata(services))


async def live(_services: Services, _: Request) -> Reply:
    """Answer that the process runs."""
    return json_reply({"live": True})


async def ready(services: Services, _: Request) -> Reply:
    """Answer whether each model is loaded that should be."""
    try:
        every = await all_ready(services)
    except BrokerError as error:
        return error_reply(error)._replace(status=400)
    return json_reply({"ready": every}, 200 if every else 400)


async def model_ready(services: Services, _: Request, model: str, version: str = "") -> Reply:
    """Answer whether a model, or a version of it, is loaded."""
    found = await ready_model(services, model, version)
    if found is None:
        return error_reply(_NOT_READY)
    return json_reply({"name": found.name, "ready": True})


async def models(services: Services, _: Request) -> Reply:
    """Return the names of all models."""
    return json_reply({"models": [model.name for model in services.catalog.served]})


async def metadata(services: Services, _: Request, model: str, version: str = "") -> Reply:
    """Return the metadata of a model."""
    found = await model_for(services, model, version)
    await services.model_statuses.refresh()
    return json_reply(metadata_of(services, found))


async def config(services: Services, _: Request, model: str, version: str = "") -> Reply:
    """Return the configuration of a model."""
    return json_reply(await config_of(services, await model_for(services, model, version)))


async def statistics(services: Services, _: Request, model: str = "", version: str = "") -> Reply:
    """Return the statistics of a model, or of all models."""
    return json_reply(await statistics_of(services, model, version))


async def index(services: Services, request: Request) -> Reply:
    """Return the models of the repository, and their states."""
    only_ready = (await _document(request)).get("ready", False)
    if type(only_ready) is not bool:
        raise InvalidRequest("Invalid value for 'ready': expected a boolean")
    return json_reply(await repository.index_of(services, ready=only_ready))


async def load(services: Services, request: Request, model: str) -> Reply:
    """Load a model, and wait until it serves."""
    parameters = (await _document(request)).get("parameters")
    await repository.load(services, request.caller, model, parameters)
    return _nothing()


async def unload(services: Services, request: Request, model: str) -> Reply:
    """Unload a model, and wait until no worker serves it."""
    await _document(request)
    await repository.unload(services, request.caller, model)
    return _nothing()


def fixed(document: Any) -> Fixed:
    """Return an endpoint that always gives this document."""

    async def endpoint(_services: Services, _: Request, *_of: str) -> Reply:
        return json_reply(document)

    return endpoint


async def unregister(_services: Services, _: Request, *_of: str) -> Reply:
    """Forget a region of shared memory; no region is ever known here."""
    return _nothing()


async def register(_services: Services, _: Request, *_of: str) -> Reply:
    """Refuse shared memory."""
    raise no_shared_memory()


async def change_setting(_services: Services, _: Request, *_of: str) -> Reply:
    """Refuse to change traces and logs."""
    raise Unsupported("traces and logs are set by the settings of the server, not over HTTP")


trace, logging = fixed(_TRACE), fixed(_LOGGING)
regions = fixed([])


def _nothing() -> Reply:
    return Reply(200, b"", headers=(NO_STORE,))


async def _document(request: Request) -> dict[str, Any]:
    body = await read_body(request, _BODY_MAX_BYTES, fixed=True)
    if not body.strip():
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"failed to parse the request JSON buffer: {error}") from None
