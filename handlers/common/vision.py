"""The numbers of vision models: image to tensor, and output of the model to lists.

Shared by the built-in handlers and those of extensions. The steps of `Compose` give the numbers
that torchvision's transforms of the same names give for Pillow images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from handlers.common.images import to_rgb
from headrace.errors import HandlerError, InputError

#: The mean and the spread of ImageNet's images, per channel, for values in 0..1.
IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)
#: The least score of an object that is returned.
MIN_SCORE: Final = 0.5
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


def pixels(image: Image.Image) -> Tensor:
    """Return the 8-bit tones of an image as a tensor (C, H, W); of 1-bit images 0 and 255."""
    tones = np.array(image, np.uint8)
    if image.mode == "1":
        tones *= 255
    return (
        torch.from_numpy(tones.reshape(image.height, image.width, -1)).permute(2, 0, 1).contiguous()
    )


def centre_square(image: Image.Image, resize_px: int, crop_px: int) -> Image.Image:
    """Return the middle square of the image as if its shorter side were `resize_px`."""
    width, height = image.size
    # Only the cropped part is resampled, so that an image of 1 x 50,000,000 does not grow.
    side = min(width, height) * crop_px / resize_px
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize(
        (crop_px, crop_px),
        Image.Resampling.BILINEAR,
        box=(left, top, left + side, top + side),
        reducing_gap=2.0,
    )


def centre_square_of(tones: Tensor, resize_px: int, crop_px: int) -> Tensor:
    """Return what `centre_square` does, of tones (3, H, W) on any device, as (S, S, 3).

    The square begins at a whole pixel, and tones differ a little from Pillow's.
    """
    side = max(1, round(min(tones.shape[1:]) * crop_px / resize_px))
    top, left = (max(0, round((length - side) / 2)) for length in tones.shape[1:])
    square = tones[None, :, top : top + side, left : left + side].float()
    resized = interpolate(square, (crop_px, crop_px), mode="bilinear", antialias=True)
    return resized[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous()


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


def tensor_of(values: Sequence[Any]) -> Tensor:
    """Return a nested list of numbers as a float tensor.

    Raises:
        InputError: it is not one, or its rows have different lengths.
    """
    try:
        return torch.tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(
            f"the list is not a tensor: {error}; send [channel][row][column] of numbers"
        ) from None


def best_classes(logits: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the probabilities and the indices (N, K) of the likeliest classes, best first.

    Args:
        logits: the model's output, (N, classes).
        most: K, unless there are fewer classes.
    """
    probabilities = logits.float().softmax(dim=1)
    best = probabilities.topk(min(most, probabilities.shape[1]), dim=1)
    return best.values, best.indices


def segmentation_logits(output: Any) -> Tensor:
    """Return the logits (N, classes, H, W) of a segmentation model's output.

    Raises:
        HandlerError: it is neither a tensor nor a mapping with a tensor as "out".
    """
    logits = output.get("out") if isinstance(output, Mapping) else output
    if not isinstance(logits, Tensor):
        raise HandlerError(
            f"the model returned a {type(output).__name__} without logits; a segmentation model "
            'returns {"out": logits of the shape [N, classes, H, W]}'
        )
    return logits


def pixel_classes(logits: Tensor) -> Tensor:
    """Return (N, H, W, 2): the likeliest class of each pixel, and its probability."""
    best = logits.softmax(dim=1).max(dim=1)
    return torch.stack([best.indices.to(best.values.dtype), best.values], dim=3)


def found_objects(
    detected: Mapping[str, Tensor], min_score: float = MIN_SCORE
) -> list[tuple[list[float], int, float]]:
    """Return (box, label, score) of each object in one image, in the model's order.

    Args:
        detected: the model's output for the image: `boxes` (M, 4), `labels` (M), `scores` (M).
        min_score: objects below it are left out.

    Raises:
        HandlerError: the output has other members.
    """
    try:
        boxes, labels, scores = (detected[name] for name in ("boxes", "labels", "scores"))
    except (KeyError, TypeError, IndexError):
        raise HandlerError(
            "the model returned no boxes, labels and scores; a detection model returns one mapping "
            "with these tensors for each image"
        ) from None
    certain = scores >= min_score
    rows = (boxes[certain].tolist(), labels[certain].tolist(), scores[certain].tolist())
    return list(zip(*rows, strict=True))


def takes_list(model: object) -> bool:
    """Return whether a TorchScript program declares its first input as a list."""
    schema = getattr(getattr(model, "forward", None), "schema", None)
    arguments: Any = getattr(schema, "arguments", ())
    return len(arguments) > 1 and isinstance(arguments[1].type, torch.ListType)
