"""The models, their forms and the images of the benchmark."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SEED: Final = 0
#: A form may be compiled, for two batch sizes, while other models load.
LOAD_S: Final = 900
_DETECTOR: Final = f"{Path(__file__).with_name('detector.py')}:Detector"


@dataclass(frozen=True, slots=True)
class Photograph:
    """A JPEG."""

    jpeg: bytes

    def as_input(self) -> dict[str, str]:
        """Return it as the input of a message."""
        return {
            "content_type": "image/jpeg",
            "base64": base64.b64encode(self.jpeg).decode(),
        }


def photographs(count: int, width: int, height: int) -> list[Photograph]:
    """Return different images that take as long to decode as photographs, always the same."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(SEED)
    made = []
    for _ in range(count):
        coarse = random.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        grain = random.normal(0, 8, (height, width, 3))
        pixels = (np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        made.append(Photograph(file.getvalue()))
    return made


@dataclass(frozen=True, slots=True)
class Form:
    """One way to run a model.

    Attributes:
        options: options of the handler.
        optimize: the model option `optimize`; None for none.
        needs: the package without which it cannot run, and which needs a GPU; "" for none.
        any_handler: every workload has it, and not only `image_classifier`.
    """

    options: dict[str, Any]
    optimize: dict[str, Any] | None = None
    needs: str = ""
    any_handler: bool = False


_HALF: Final = {"precision": "half"}
FORMS: Final = {
    "float": Form({"precision": "float"}, any_handler=True),
    "half": Form(_HALF, any_handler=True),
    "half-graphs": Form({}, {"backend": "compile", "mode": "reduce-overhead", **_HALF}),
    "half-tensorrt": Form({}, {"backend": "tensorrt", **_HALF}, needs="torch_tensorrt"),
    "half-gpu-decode": Form({**_HALF, "decode": "gpu"}, needs="torchvision"),
}
#: What is measured unless --forms names others.
SEED_FORMS: Final = ("float", "half")


def obstacle(name: str, device: str) -> str:
    """Return why a form cannot run on a device, `cuda` or `cpu`; "" if it can."""
    needs = FORMS[name].needs
    if not needs:
        return ""
    if device == "cpu":
        return f"{name} needs a GPU"
    return "" if importlib.util.find_spec(needs) else f"{name} needs {needs}"


@dataclass(frozen=True, slots=True)
class Workload:
    """One model.

    Attributes:
        handler: as in a models file.
        options: the handler's options, without those of a form.
        width: the width of its images, in pixels, as `height`.
    """

    name: str
    handler: str
    options: dict[str, Any]
    width: int
    height: int

    def forms(self, wanted: Iterable[str]) -> list[str]:
        """Return which of these forms it has."""
        own = self.handler == "image_classifier"
        return [name for name in wanted if own or FORMS[name].any_handler]

    def model(self, device: str, form: str, batch: int) -> dict[str, Any]:
        """Return its entry in a models file."""
        chosen = FORMS[form]
        entry = {
            "handler": self.handler,
            "device": device,
            "options": {**self.options, **chosen.options},
            "max_batch_size": batch,
            "preprocess_threads": 2,
            # Half precision needs it; the trial of `auto` on a CPU would choose differently.
            "channels_last": form.startswith("half"),
            "timeout_s": 120,
            "load_timeout_s": LOAD_S,
        }
        if chosen.optimize is not None:
            # Each size is a graph of its own.
            entry |= {"optimize": chosen.optimize, "allowed_batch_sizes": sorted({1, batch})}
        return entry


def workloads(*, tiny: bool) -> list[Workload]:
    """Return ResNet-50, and with torchvision Mask R-CNN; `tiny` ones run on a CPU too."""
    side = 32 if tiny else 224
    layers = 18 if tiny else 50
    resnet = Workload(
        f"ResNet-{layers}", "image_classifier",
        {"model": f"handlers.resnet:resnet{layers}", "resize_px": side * 8 // 7, "crop_px": side},
        500 if not tiny else 64, 375 if not tiny else 48,
    )  # fmt: skip
    if importlib.util.find_spec("torchvision") is None:
        return [resnet]
    size = 64 if tiny else 320
    detector = Workload("Mask R-CNN", _DETECTOR, {"min_px": size * 3 // 4}, size, size * 3 // 4)
    return [resnet, detector]
