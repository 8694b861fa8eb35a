"""The models, precisions and images of the benchmark."""

from __future__ import annotations

import base64
import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PRECISIONS: Final = ("float", "half")
SEED: Final = 0
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
class Workload:
    """One model.

    Attributes:
        handler: as in a models file.
        options: the handler's options, without `precision`.
        width: the width of its images, in pixels, as `height`.
    """

    name: str
    handler: str
    options: dict[str, Any]
    width: int
    height: int

    def model(self, device: str, precision: str, batch: int) -> dict[str, Any]:
        """Return its entry in a models file."""
        return {
            "handler": self.handler,
            "device": device,
            "options": {**self.options, "precision": precision},
            "max_batch_size": batch,
            "preprocess_threads": 2,
            # Half precision needs it; the trial of `auto` on a CPU would choose differently.
            "channels_last": precision == "half",
            "timeout_s": 120,
            "load_timeout_s": 300,
        }


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
