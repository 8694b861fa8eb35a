"""Image segmentation with any torch module: the likeliest class of each pixel.

`options.model` and `weights` are as for `image_classifier`. The module returns a mapping with the
logits (N, classes, H, W) as "out", as torchvision's segmentation models do, or the logits alone.

A result is [row][column] of [class, probability], of the resized and cut image.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from handlers.common.image_modules import CroppedImageHandler
from handlers.common.vision import pixel_classes, segmentation_logits


class ImageSegmenter(CroppedImageHandler):
    """Returns the likeliest class of each pixel, and its probability."""

    @override
    def outputs(self, output: Any) -> tuple[Tensor, ...]:
        return (pixel_classes(segmentation_logits(output)),)

    @override
    def scores(self, output: Any) -> Tensor:
        # The whole image's score of a class is that of all its pixels.
        return segmentation_logits(output).sum(dim=(2, 3))

    @override
    def result(self, pixels: list[Any]) -> list[Any]:
        return pixels
