"""What this extension adds: a function for each point, which imports as late as it can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.config.extensions import Extension

if TYPE_CHECKING:
    from api.extension import ApiPart
    from api.services import Part, Services
    from handlers.extension import TensorPart


def _api() -> ApiPart:
    from api.extension import ApiPart
    from extensions.inference_protocols.http import endpoints as v2
    from extensions.inference_protocols.tensorflow import calls
    from extensions.inference_protocols.tensorflow.status import members

    return ApiPart(
        routes=[*v2.ROUTES, *calls.ROUTES],
        parts=_grpc,
        error_reply=lambda path, error: v2.error_for(path, error) or calls.error_for(path, error),
        header_prefixes=("inference-header-",),
        model_members=members,
    )


def _grpc(services: Services) -> Sequence[Part]:
    from extensions.inference_protocols.settings import NAME, ProtocolSettings

    port = services.settings.of(NAME, ProtocolSettings).grpc_port
    if not port:
        return ()
    from api.grpc import need_grpc

    setting = f"{NAME}: grpc_port"
    need_grpc(setting)
    from api.grpc.server import GrpcServer, Place
    from extensions.inference_protocols.grpc.messages import PROTOS
    from extensions.inference_protocols.grpc.service import METHODS, SERVICE
    from extensions.inference_protocols.tensorflow.service import SERVICES

    place = Place(services.settings.host, port, setting, tls=True)
    return (GrpcServer(services, place, PROTOS, {SERVICE: METHODS, **SERVICES}).part,)


def _tensors() -> TensorPart:
    from extensions.inference_protocols.handlers.arrays import read_input, write_result
    from handlers.extension import TensorPart

    return TensorPart(read=read_input, write=write_result)


def _settings() -> Any:
    from extensions.inference_protocols.settings import ProtocolSettings

    return ProtocolSettings


EXTENSION: Final = Extension(
    name="inference_protocols",
    summary="The protocols of Triton, KServe and TensorFlow Serving",
    api=_api,
    tensors=_tensors,
    settings=_settings,
)
