"""The numbers of vision models: image to tensor, and output of the model to lists.

Shared by the built-in handlers and those of extensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from headrace.errors import HandlerError, InputError

#: The mean and the spread of ImageNet's images, per channel, for values in 0..1.
IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)
#: The least score of an object that is returned.
MIN_SCORE: Final = 0.5


def pixels(image: Image.Image) -> Tensor:
    """Return the 8-bit tones of an image as a tensor (C, H, W); of 1-bit images 0 and 255."""
    if image.mode == "RGB":
        # A fifth faster than an array of the whole image: `python -m benchmarks.models.jpegs`.
        tones = np.empty((3, image.height, image.width), np.uint8)
        for plane, channel in zip(tones, image.split(), strict=True):
            plane[:] = np.frombuffer(channel.tobytes(), np.uint8).reshape(plane.shape)
        return torch.from_numpy(tones)
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


def tensor_of(values: Sequence[Any]) -> Tensor:
    """Return a nested list of numbers as a float tensor; raise InputError if it is no such list."""
    try:
        return torch.tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(
            f"the list is not a tensor: {error}; send [channel][row][column] of numbers"
        ) from None


def best_classes(logits: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the probabilities and indices (N, K) of the `most` likeliest of (N, classes)."""
    probabilities = logits.float().softmax(dim=1)
    best = probabilities.topk(min(most, probabilities.shape[1]), dim=1)
    return best.values, best.indices


def segmentation_logits(output: Any) -> Tensor:
    """Return the logits (N, classes, H, W) of a segmentation; raise HandlerError if it has none."""
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
