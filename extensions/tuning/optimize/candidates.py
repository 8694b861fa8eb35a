"""The variants of a model that are worth a measurement."""

from __future__ import annotations

from typing import Final

from headrace.config.model.optimize import FIXED_SHAPES, Backend, Optimize

_OF_TORCH: Final[tuple[Backend, ...]] = ("torchscript", "aot", "compile")


def candidates(device: str) -> list[Optimize]:
    """Return the variants that are worth a measurement on a device, apart from eager in float.

    The likely winners are first, as a smaller precision is faster where it is tried. Slow builds
    are last, because they leave others no time.

    On a CPU, half and bfloat16 are left out: they are faster only where it has instructions for
    them, and `optimize --variants` can name them.
    """
    if device == "cpu":
        found = [
            *(Optimize(backend=one, precision="int8") for one in ("openvino", "onnxruntime")),
            *(Optimize(backend=one) for one in ("openvino", "onnxruntime", *_OF_TORCH)),
        ]
    else:
        backends: list[Backend] = ["onnxruntime", *_OF_TORCH, "tensorrt"]
        found = [
            *(Optimize(backend=one, precision="half") for one in ("eager", *backends)),
            Optimize(backend="compile", precision="half", mode="reduce-overhead"),
            *(Optimize(backend=one) for one in backends),
        ]
    return sorted(found, key=lambda variant: variant.backend in FIXED_SHAPES)
