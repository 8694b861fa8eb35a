"""The methods of the service, but for the stream; each is a thin form of what HTTP has too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from google.protobuf import json_format

from api.auth.authenticator import Open
from api.grpc.calls import Answer, Method
from api.http.messages import Request
from api.services import Services
from api.submission.job_request import idempotency_key
from extensions.inference_protocols.grpc.messages import PACKAGE, PROTOS, request_of, write_response
from extensions.inference_protocols.grpc.stream import stream_infer
from extensions.inference_protocols.jobs import inference
from extensions.inference_protocols.models import documents, repository
from extensions.inference_protocols.tensors.requests import no_changes, no_shared_memory
from headrace.access.api_key import Scope
from headrace.errors import BrokerError, HeadraceError

SERVICE: Final = f"{PACKAGE}.GRPCInferenceService"
Document = Callable[..., Awaitable[Mapping[str, Any]]]


def _reply(request: Request, document: Mapping[str, Any]) -> Any:
    """Return the response of a method; the document has the names of its fields."""
    method = request.path.rpartition("/")[2]
    response = PROTOS.message(f"{PACKAGE}.{method}Response")()
    return json_format.ParseDict(document, response, descriptor_pool=PROTOS.pool)


def _shows(document: Document, *fields: str) -> Answer:
    """Return a method that answers with a document about what these fields name."""

    async def answer(services: Services, request: Request, message: Any, _context: Any) -> Any:
        values = (getattr(message, field) for field in fields)
        return _reply(request, await document(services, *values))

    return answer


def _refuses(error: Callable[[], HeadraceError]) -> Answer:
    async def answer(_services: Services, _: Request, _message: Any, _context: Any) -> Any:
        raise error()

    return answer


async def _nothing(_: Services) -> Mapping[str, Any]:
    return {}


async def _live(_: Services) -> Mapping[str, Any]:
    return {"live": True}


async def _ready(services: Services) -> Mapping[str, Any]:
    try:
        return {"ready": await repository.all_ready(services)}
    except BrokerError:
        return {"ready": False}


async def _model_ready(services: Services, name: str, version: str) -> Mapping[str, Any]:
    return {"ready": await repository.ready_model(services, name, version) is not None}


async def _config(services: Services, name: str, version: str) -> Mapping[str, Any]:
    return {"config": await documents.config_of(services, name, version)}


async def _index(services: Services, ready: bool) -> Mapping[str, Any]:
    return {"models": await repository.index_of(services, ready=ready)}


def _changes(change: Callable[..., Awaitable[None]], done: str) -> Answer:
    async def answer(services: Services, request: Request, message: Any, _context: Any) -> Any:
        # In field 2 with Triton's clients, in field 1 with KServe's.
        model = message.model_name or message.repository_name
        await change(services, request.caller, model, message.parameters)
        return _reply(request, {"model_name": model, done: True})

    return answer


async def _infer(services: Services, request: Request, message: Any, context: Any) -> Any:
    model = await repository.model_for(services, message.model_name, message.model_version)
    key = idempotency_key(request)
    with inference.counting_refusals(services, model):
        asked = await request_of(message)
        del message  # its tensors have their own bytes
        validated = inference.job_request(services, request, model, asked, key)
        asked.inputs.clear()
    await context.send_initial_metadata(((inference.JOB, validated.identity.job_id),))
    job = await inference.run(services, validated)
    return write_response(asked, job.model, job.version, await inference.outputs_of(services, job))


_MODEL: Final = ("name", "version")
#: No region of shared memory is ever known.
_SHARED_MEMORY: Final = {
    "Status": Method(_shows(_nothing), Scope.READ),
    "Register": Method(_refuses(no_shared_memory), Scope.MANAGE),
    "Unregister": Method(_shows(_nothing), Scope.MANAGE),
}
METHODS: Final = {
    "ServerLive": Method(_shows(_live), Open.ALWAYS),
    "ServerReady": Method(_shows(_ready), Open.ALWAYS),
    "ServerMetadata": Method(_shows(documents.server_metadata), Open.ALWAYS),
    "ModelReady": Method(_shows(_model_ready, *_MODEL), Scope.READ),
    "ModelMetadata": Method(_shows(documents.metadata_of, *_MODEL), Scope.READ),
    "ModelConfig": Method(_shows(_config, *_MODEL), Scope.READ),
    "ModelStatistics": Method(_shows(documents.statistics_of, *_MODEL), Scope.READ),
    "ModelInfer": Method(_infer, Scope.SUBMIT),
    "ModelStreamInfer": Method(stream_infer, Scope.SUBMIT),
    "RepositoryIndex": Method(_shows(_index, "ready"), Scope.READ),
    "RepositoryModelLoad": Method(_changes(repository.load, "isLoaded"), Scope.MANAGE),
    "RepositoryModelUnload": Method(_changes(repository.unload, "isUnloaded"), Scope.MANAGE),
    "TraceSetting": Method(_refuses(no_changes), Scope.MANAGE),
    "LogSettings": Method(_refuses(no_changes), Scope.MANAGE),
    **{f"SystemSharedMemory{verb}": method for verb, method in _SHARED_MEMORY.items()},
    **{f"CudaSharedMemory{verb}": method for verb, method in _SHARED_MEMORY.items()},
}
