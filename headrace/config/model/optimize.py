"""The model option `optimize`: which form of the model's module runs."""

from __future__ import annotations

from typing import Annotated, Final, Literal

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
        calibrate: a folder of inputs, or one file, for int8 and for the check of outputs.
        max_error: the largest difference to eager that is allowed, relative to the largest output.
            Default: 0.01; 0.05 with half or bfloat16; 0.2 with int8.
    """

    backend: Backend = "eager"
    precision: Precision = "float"
    mode: CompileMode = "default"
    calibrate: Annotated[str, Meta(min_length=1)] | None = None
    max_error: Annotated[float, Meta(gt=0, le=1)] | None = None

    @property
    def error_limit(self) -> float:
        """Return `max_error`, or the default of its precision."""
        return self.max_error or _MAX_ERROR[self.precision]

    @property
    def name(self) -> str:
        """Return the backend and the precision, such as "openvino int8"."""
        mode = f" {self.mode}" if self.mode != "default" else ""
        return f"{self.backend}{mode} {self.precision}"


#: The default of `max_error`. Half has 11 bits and bfloat16 has 8; int8 has 8 with a scale.
_MAX_ERROR: Final = {"float": 0.01, "half": 0.05, "bfloat16": 0.05, "int8": 0.2}

#: The extra of pip with the packages of a backend that PyTorch does not have, and those packages as
#: Python imports them.
EXTRAS: Final[dict[Backend, tuple[str, tuple[str, ...]]]] = {
    "onnxruntime": ("onnxruntime", ("onnxruntime", "onnx", "onnxscript")),
    "openvino": ("openvino", ("openvino", "nncf")),
    "tensorrt": ("tensorrt", ("torch_tensorrt",)),
}
#: Below the state directory: the builds of variants.
OPTIMIZED: Final = "optimized"
#: The backends that build or tune themselves for each batch size, which takes long.
FIXED_SHAPES: Final = frozenset({"compile", "aot", "tensorrt"})
#: The backends that can run int8.
INT8: Final = ("onnxruntime", "openvino")


def optimize_problem(wanted: Optimize) -> str:
    """Return why the keys of a variant do not go together; "" if they do."""
    if wanted.precision == "int8" and wanted.backend not in INT8:
        return f"{wanted.backend} has no int8; set backend to {' or '.join(INT8)}"
    if wanted.mode != "default" and wanted.backend != "compile":
        return f"mode is for the backend compile, not {wanted.backend}; leave it out"
    return ""
