"""Handwritten digits: a small convolutional network on 8 x 8 grey images.

Trained by `examples/train_digits.py` on 1,437 of the 1,797 images of scikit-learn's `load_digits`.
Of the other 360 images, 358 (99.4 %) are classified correctly, as PNGs of 64 x 64, dark on light.

An input is a PNG or JPEG of one digit: of any size, dark on light or light on dark, with any
margin. The result is `{"digit": 7, "probability": 0.998, "probabilities": [ten numbers]}`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from typing_extensions import override

from handlers.common.images import ImageHandler, decode, shrunk, to_grey
from handlers.common.tensors import load_weights
from headrace.errors import InputError
from headrace.handler import Context, Exportable

SIDE_PX: Final = 8
WEIGHTS: Final = Path(__file__).parent / "weights" / "digits.safetensors"
#: Large JPEGs are decoded at a smaller size, at which strokes have enough pixels.
DRAFT_PX: Final = 256
#: Other images are shrunk to it, as the digit is brought into a square of the longest side.
HIGHEST_SIDE_PX: Final = 2048
#: The least difference between paper and ink, in tones of 0..255; below it the image is blank.
MIN_CONTRAST: Final = 24
#: The share of the contrast from which a pixel counts as ink, when the margin is cut off.
INK: Final = 0.25
_ROUNDED: Final = 6


class DigitsNet(nn.Module):
    """Three convolutions and one linear layer: 33,000 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(48, 48, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
        )
        self.head = nn.Linear(48 * 2 * 2, 10)

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, 10) of images (N, 1, 8, 8) in 0..1."""
        logits: Tensor = self.head(self.body(images))
        return logits


class Digits(ImageHandler):
    """Classifies the digit in an image."""

    forward: Callable[[Tensor], Tensor]

    @override
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.model = DigitsNet()
        load_weights(self.model, context.weights or WEIGHTS, weights_only=context.weights_only)
        self.use(self.model.to(context.device).eval())

    def use(self, forward: Callable[[Tensor], Tensor]) -> None:
        """Run this to classify."""
        self.forward = forward

    @override
    def exportable(self) -> Exportable:
        return Exportable(self.model, self.use, lambda logits: logits)

    @override
    def inference(self, items: Any) -> Any:
        with torch.inference_mode():
            images = torch.stack(list(items)).to(self.context.device)
            return self.forward(images).softmax(dim=1).cpu()

    @override
    def postprocess(self, outputs: Any) -> list[Any]:
        return [_result(row) for row in outputs.tolist()]

    @override
    def item(self, data: Any) -> Tensor:
        image = decode(data, max_pixels=self.options.max_pixels, draft_px=DRAFT_PX)
        return torch.from_numpy(frame(shrunk(to_grey(image), HIGHEST_SIDE_PX))).unsqueeze(0)


def frame(image: Image.Image) -> NDArray[np.float32]:
    """Return a grey image's digit, ink 1 on paper 0, in 8 x 8; raise InputError if it is blank."""
    tones = np.asarray(image, dtype=np.float32)
    rim = np.concatenate([tones[0], tones[-1], tones[:, 0], tones[:, -1]])
    paper = float(np.median(rim))
    ink = np.abs(tones - paper)
    # Ink is on one side of the paper's tone; the other side is noise and shadow.
    above, below = float(tones.max()) - paper, paper - float(tones.min())
    ink[(tones < paper) if above >= below else (tones > paper)] = 0
    contrast = float(ink.max())
    if contrast < MIN_CONTRAST:
        raise InputError(
            "the image is blank (nearly one tone); send one digit, dark on light or light on dark"
        )
    ink /= contrast
    return _fit(_cut(ink))


def _cut(ink: NDArray[np.float32]) -> NDArray[np.float32]:
    written = ink > INK
    rows, columns = np.flatnonzero(written.any(axis=1)), np.flatnonzero(written.any(axis=0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _fit(ink: NDArray[np.float32]) -> NDArray[np.float32]:
    height, width = ink.shape
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    square = np.zeros((side, side), dtype=np.float32)
    square[top : top + height, left : left + width] = ink
    small = Image.fromarray(square).resize((SIDE_PX, SIDE_PX), Image.Resampling.BOX)
    fitted = np.array(small, dtype=np.float32)
    return fitted / max(float(fitted.max()), 1e-6)


def _result(probabilities: list[float]) -> dict[str, Any]:
    digit = max(range(len(probabilities)), key=probabilities.__getitem__)
    rounded = [round(value, _ROUNDED) for value in probabilities]
    return {"digit": digit, "probability": rounded[digit], "probabilities": rounded}
