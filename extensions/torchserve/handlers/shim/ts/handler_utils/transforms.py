"""The steps from an image to a tensor.

They give the numbers that torchvision's transforms of the same names give for Pillow images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from handlers.common.images import to_rgb
from handlers.common.vision import IMAGENET_MEAN, IMAGENET_STD, pixels

#: How many times as long as wide an image may be.
_PROPORTION_MAX: Final = 32
#: The types of pixels with other than 8 bits, as arrays.
_WIDE: Final = {"I": np.int32, "I;16": np.int32, "I;16B": np.int32, "F": np.float32}


@dataclass(frozen=True)
class Compose:
    """Runs steps in turn, each on what the one before it returned."""

    transforms: Sequence[Callable[[Any], Any]]

    def __call__(self, image: Any) -> Any:
        """Return what the last step makes of the image."""
        for step in self.transforms:
            image = step(image)
        return image


@dataclass(frozen=True)
class ToRGB:
    """Converts an image to 8-bit RGB; transparent parts become white."""

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the image in RGB."""
        return image if image.mode == "RGB" else to_rgb(image)


@dataclass(frozen=True)
class Resize:
    """Resizes the shorter side of an image to `size`, bilinear, and keeps its proportions.

    Of an image that is more than 32 times as long as wide, only the middle is kept.
    """

    size: int

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the resized image."""
        width, height = image.size
        shorter, longest = min(width, height), max(width, height)
        longer = int(self.size * longest / shorter)
        # CenterCrop rounds in the same way if a multiple of four is cut off.
        kept = longer - max(0, longer - self.size * _PROPORTION_MAX) // 4 * 4
        cut = (longest - longest * kept / longer) / 2
        wanted, box = (self.size, kept), (0.0, cut, float(width), height - cut)
        if width > height:
            wanted, box = (kept, self.size), (cut, 0.0, width - cut, float(height))
        if image.size == wanted:
            return image
        return image.resize(wanted, Image.Resampling.BILINEAR, box=box)


@dataclass(frozen=True)
class CenterCrop:
    """Cuts a square of the side `size` from the middle; a smaller image gets a black margin."""

    size: int

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the middle of the image."""
        wide, high = (max(side, self.size) for side in image.size)
        if (wide, high) != image.size:
            framed = Image.new(image.mode, (wide, high))
            framed.paste(image, ((wide - image.width) // 2, (high - image.height) // 2))
            image = framed
        # round() of halves goes to the even number, as in torchvision.
        left, top = round((wide - self.size) / 2), round((high - self.size) / 2)
        return image.crop((left, top, left + self.size, top + self.size))


@dataclass(frozen=True)
class ToTensor:
    """Makes a tensor (C, H, W) of an image: 8-bit tones become 0..1, others stay as they are."""

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the tensor; its type is float32, or int for images with wider integer pixels."""
        if image.mode in _WIDE:
            return torch.from_numpy(np.array(image, _WIDE[image.mode])).unsqueeze(0)
        return pixels(image).to(torch.float32).div(255)


@dataclass(frozen=True)
class Normalize:
    """Subtracts a mean from each channel, then divides by a spread."""

    mean: Sequence[float]
    std: Sequence[float]

    def __call__(self, image: Tensor) -> Tensor:
        """Return the normalised tensor (..., C, H, W)."""
        mean, std = (
            torch.tensor(values, dtype=image.dtype, device=image.device).view(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        return (image - mean) / std


def imagenet_transform(resize_px: int = 256, crop_px: int = 224) -> Compose:
    """Return the usual preparation for models that were trained on ImageNet."""
    return Compose(
        [
            ToRGB(),
            Resize(resize_px),
            CenterCrop(crop_px),
            ToTensor(),
            Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
