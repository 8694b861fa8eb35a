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


def _reply(name: str, document: Mapping[str, Any]) -> Any:
    """Return a response by the name of its method; the documents have the names of its fields."""
    response = PROTOS.message(f"{PACKAGE}.{name}Response")()
    return json_format.ParseDict(document, response, descriptor_pool=PROTOS.pool)


def _shows(name: str, document: Document, *fields: str) -> Answer:
    """Return a method that answers with a document about what these fields name."""

    async def answer(services: Services, _: Request, message: Any, _context: Any) -> Any:
        return _reply(name, await document(services, *(getattr(message, one) for one in fields)))

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


_OF_SERVER: Final[Mapping[str, Document]] = {
    "ServerLive": _live, "ServerReady": _ready, "ServerMetadata": documents.server_metadata,
}  # fmt: skip
_OF_MODEL: Final[Mapping[str, Document]] = {
    "ModelReady": _model_ready, "ModelMetadata": documents.metadata_of, "ModelConfig": _config,
    "ModelStatistics": documents.statistics_of,
}  # fmt: skip
_SHARED_MEMORY: Final = ("SystemSharedMemory", "CudaSharedMemory")
METHODS: Final = {
    **{name: Method(_shows(name, document), Open.ALWAYS) for name, document in _OF_SERVER.items()},
    **{
        name: Method(_shows(name, document, "name", "version"), Scope.READ)
        for name, document in _OF_MODEL.items()
    },
    "ModelInfer": Method(_infer, Scope.SUBMIT),
    "ModelStreamInfer": Method(stream_infer, Scope.SUBMIT),
    "RepositoryIndex": Method(_shows("RepositoryIndex", _index, "ready"), Scope.READ),
    "RepositoryModelLoad": Method(_load, Scope.MANAGE),
    "RepositoryModelUnload": Method(_unload, Scope.MANAGE),
    "TraceSetting": Method(_refuses(no_changes), Scope.MANAGE),
    "LogSettings": Method(_refuses(no_changes), Scope.MANAGE),
    # No region of shared memory is ever known.
    **{
        f"{kind}{verb}": Method(answer, scope)
        for kind in _SHARED_MEMORY
        for verb, answer, scope in (
            ("Status", _shows(f"{kind}Status", _nothing), Scope.READ),
            ("Register", _refuses(no_shared_memory), Scope.MANAGE),
            ("Unregister", _shows(f"{kind}Unregister", _nothing), Scope.MANAGE),
        )
    },
}
