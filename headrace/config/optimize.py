"""The model option `optimize`: which form of the model's module runs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Backend = Literal["eager", "compile", "aot", "torchscript", "onnxruntime", "openvino", "tensorrt"]
Precision = Literal["float", "half", "bfloat16", "int8"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune"]


class Optimize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of a model.

    Attributes:
        backend: what runs the module. eager is PyTorch as it is.
        precision: the type of weights and activations; int8 needs `calibrate`, or the handler's
            example input.
        mode: the mode of torch.compile, for the backend compile.
        calibrate: a folder of inputs, for int8 and for the check of outputs.
        max_error: the largest difference to eager that is allowed, relative to the largest output.
    """

    backend: Backend = "eager"
    precision: Precision = "float"
    mode: CompileMode = "default"
    calibrate: Annotated[str, Meta(min_length=1)] | None = None
    max_error: Annotated[float, Meta(gt=0, le=1)] = 0.01
