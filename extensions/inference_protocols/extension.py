"""What this extension adds: a function for each point, which imports as late as it can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.config.extensions import Extension

if TYPE_CHECKING:
    from api.extension import ApiPart
    from handlers.extension import TensorPart


def _api() -> ApiPart:
    from extensions.inference_protocols.api_part import PART

    return PART


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
