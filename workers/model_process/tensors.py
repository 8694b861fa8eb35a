"""Inputs and results of a model that declares tensors: an extension reads and writes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from handlers.extension import TensorPart, tensor_parts
from headrace.config.inputs.tensors import TENSORS_TYPE, DeclaredTensor
from headrace.errors import ConfigError, HandlerError, InvalidRequest, JobError
from headrace.jobs.values.media_types import is_json

logger = logging.getLogger("headrace.model")


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """The tensors of one model, and who reads them."""

    inputs: list[DeclaredTensor]
    outputs: list[DeclaredTensor]
    part: TensorPart

    def read(self, value: Any, content_type: str) -> Any:
        """Return an input as the handler gets it, as arrays; raise InvalidRequest if it is bad."""
        kind = content_type.partition(";")[0].strip().lower()
        if kind != TENSORS_TYPE and not is_json(kind):
            return value
        try:
            return self.part.read(value, content_type, self.inputs)
        except InvalidRequest:
            raise
        except Exception as error:
            logger.warning("an input cannot be read as tensors", exc_info=True)
            raise InvalidRequest(f"the tensors cannot be read: {error}") from error

    def written(self, result: Any, given: Any) -> Any:
        """Return a result in the form of its input, or the error in its place."""
        if isinstance(result, BaseException):
            return result
        try:
            return self.part.write(result, given, self.outputs)
        except JobError as error:
            return error
        except Exception as error:  # whatever a handler returns ends its own job alone
            logger.warning("a result cannot be written as tensors", exc_info=True)
            return HandlerError(f"the result is no tensors: {type(error).__name__}: {error}")


def tensors_of(frame: Mapping[str, Any] | None) -> ModelTensors | None:
    """Return the tensors in an init frame, or None; raise ConfigError if nothing does."""
    if frame is None:
        return None
    part = next(iter(tensor_parts().values()), None)
    if part is None:
        raise ConfigError(
            "the model declares tensors, and no extension reads them",
            hint="install the extension inference_protocols, or declare fields",
        )
    inputs, outputs = (
        msgspec.convert(frame[key], list[DeclaredTensor]) for key in ("inputs", "outputs")
    )
    return ModelTensors(inputs, outputs, part)
