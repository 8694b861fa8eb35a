"""TorchServe's handler of image segmentation."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor
from typing_extensions import override

from handlers.common.explanations import captum_attr
from handlers.common.vision import pixel_classes, segmentation_logits
from ts.handler_utils.transforms import imagenet_transform
from ts.torch_handler.vision_handler import VisionHandler


class ImageSegmenter(VisionHandler):
    """Returns the likeliest class of each pixel, and its probability."""

    image_processing: Any = imagenet_transform()

    @override
    def postprocess(self, data: Any) -> Any:
        """Return [row][column] of [class, probability] for each image."""
        return pixel_classes(segmentation_logits(data)).tolist()

    @functools.cached_property
    @override
    def ig(self) -> Any:
        """Captum's `IntegratedGradients` of the sum over all pixels of each class."""

        def scores(images: Tensor) -> Tensor:
            return segmentation_logits(self.model(images)).sum(dim=(2, 3))

        return captum_attr().IntegratedGradients(scores)
