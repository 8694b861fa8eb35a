"""The methods of the service, but for the stream; each is a thin form of what HTTP has too."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import json_format

from api.auth.authenticator import Open
from api.grpc.calls import Answer, Method
from api.http.messages import Request
from api.services import Services
from api.submission.job_request import idempotency_key, request_trace
from extensions.inference_protocols.grpc.messages import (
    PACKAGE,
    PROTOS,
    request_of,
    write_response,
)
from extensions.inference_protocols.grpc.stream import stream_infer
from extensions.inference_protocols.jobs.inference import (
    JOB,
    Call,
    job_request,
    outputs_of,
    run,
)
from extensions.inference_protocols.models import repository
from extensions.inference_protocols.models.descriptions import (
    config_of,
    metadata_of,
    server_metadata,
)
from extensions.inference_protocols.models.lookup import all_ready, model_for, ready_model
from extensions.inference_protocols.models.statistics import statistics_of
from extensions.inference_protocols.tensors.requests import Unsupported, no_shared_memory
from headrace.access.api_key import Scope
from headrace.errors import BrokerError, HeadraceError

SERVICE: Final = f"{PACKAGE}.GRPCInferenceService"


def _reply(name: str, document: dict[str, Any] | None = None) -> Any:
    """Return a response by the name of its method; the documents have the names of its fields."""
    response = PROTOS.message(f"{PACKAGE}.{name}Response")()
    return json_format.ParseDict(document or {}, response, descriptor_pool=PROTOS.pool)


async def _live(_services: Services, _: Request, _message: Any, _context: Any) -> Any:
    return _reply("ServerLive", {"live": True})


async def _ready(services: Services, _: Request, _message: Any, _context: Any) -> Any:
    try:
        ready = await all_ready(services)
    except BrokerError:
        ready = False
    return _reply("ServerReady", {"ready": ready})


async def _model_ready(services: Services, _: Request, message: Any, _context: Any) -> Any:
    found = await ready_model(services, message.name, message.version)
    return _reply("ModelReady", {"ready": found is not None})


async def _server_metadata(services: Services, _: Request, _message: Any, _context: Any) -> Any:
    return _reply("ServerMetadata", server_metadata(services))


async def _metadata(services: Services, _: Request, message: Any, _context: Any) -> Any:
    model = await model_for(services, message.name, message.version)
    await services.model_statuses.refresh()
    return _reply("ModelMetadata", metadata_of(services, model))


async def _config(services: Services, _: Request, message: Any, _context: Any) -> Any:
    model = await model_for(services, message.name, message.version)
    return _reply("ModelConfig", {"config": await config_of(services, model)})


async def _statistics(services: Services, _: Request, message: Any, _context: Any) -> Any:
    found = await statistics_of(services, message.name, message.version)
    return _reply("ModelStatistics", found)


async def _index(services: Services, _: Request, message: Any, _context: Any) -> Any:
    models = await repository.index_of(services, ready=message.ready)
    return _reply("RepositoryIndex", {"models": models})


async def _load(services: Services, request: Request, message: Any, _context: Any) -> Any:
    name = _named(message)
    await repository.load(services, request.caller, name, message.parameters)
    return _reply("RepositoryModelLoad", {"model_name": name, "isLoaded": True})


async def _unload(services: Services, request: Request, message: Any, _context: Any) -> Any:
    name = _named(message)
    await repository.unload(services, request.caller, name)
    return _reply("RepositoryModelUnload", {"model_name": name, "isUnloaded": True})


def _named(message: Any) -> str:
    """Return the model to load: in field 2 with Triton's clients, in field 1 with KServe's."""
    return str(message.model_name or message.repository_name)


async def _infer(services: Services, request: Request, message: Any, context: Any) -> Any:
    model = await model_for(services, message.model_name, message.model_version)
    call = Call(
        request.caller, request.header, idempotency_key(request), trace=request_trace(request)
    )
    try:
        asked = await request_of(message)
        del message  # its tensors have their own bytes
        validated = job_request(services, call, model, asked)
        asked.inputs.clear()
    except HeadraceError as error:
        services.counters.refused(model.name, error.code)
        raise
    await context.send_initial_metadata(((JOB, validated.identity.job_id),))
    job = await run(services, call, validated)
    return write_response(asked, job.model, job.version, await outputs_of(services, job))


def _same(name: str) -> Answer:
    """Return a method whose response is empty."""

    async def answer(_services: Services, _: Request, _message: Any, _context: Any) -> Any:
        return _reply(name)

    return answer


async def _register(_services: Services, _: Request, _message: Any, _context: Any) -> Any:
    raise no_shared_memory()


async def _settings(_services: Services, _: Request, _message: Any, _context: Any) -> Any:
    raise Unsupported("traces and logs are set by the settings of the server")


def _shared_memory(kind: str) -> dict[str, Method]:
    """Return the methods of a kind of shared memory: no region is ever known."""
    name = f"{kind}SharedMemory"
    return {
        f"{name}Status": Method(_same(f"{name}Status"), Scope.READ),
        f"{name}Register": Method(_register, Scope.MANAGE),
        f"{name}Unregister": Method(_same(f"{name}Unregister"), Scope.MANAGE),
    }


METHODS: Final = {
    "ServerLive": Method(_live, Open.ALWAYS),
    "ServerReady": Method(_ready, Open.ALWAYS),
    "ServerMetadata": Method(_server_metadata, Open.ALWAYS),
    "ModelReady": Method(_model_ready, Scope.READ),
    "ModelMetadata": Method(_metadata, Scope.READ),
    "ModelConfig": Method(_config, Scope.READ),
    "ModelStatistics": Method(_statistics, Scope.READ),
    "ModelInfer": Method(_infer, Scope.SUBMIT),
    "ModelStreamInfer": Method(stream_infer, Scope.SUBMIT),
    "RepositoryIndex": Method(_index, Scope.READ),
    "RepositoryModelLoad": Method(_load, Scope.MANAGE),
    "RepositoryModelUnload": Method(_unload, Scope.MANAGE),
    **_shared_memory("System"),
    **_shared_memory("Cuda"),
    "TraceSetting": Method(_settings, Scope.MANAGE),
    "LogSettings": Method(_settings, Scope.MANAGE),
}
