"""Object detection with any torch module that takes a list of images.

`options.model` and `weights` are as for `image_classifier`. The module gets a list of tensors (3,
H, W) with values in 0..1, each of its image's own size. For each it returns one mapping with
`boxes` (M, 4), `labels` (M) and `scores` (M), as torchvision's detection models do.

A result is a list of `{"dog": [x1, y1, x2, y2], "score": 0.9}`, in the model's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from handlers.common.explanations import ExplainingHandler
from handlers.common.image_modules import image_or_tensor
from handlers.common.images import DEFAULT_MAX_PIXELS, ImageHandler, MaxPixels, to_rgb
from handlers.common.modules import ModuleOptions, load_module, load_names
from handlers.common.vision import MIN_SCORE, found_objects, pixels
from headrace.errors import HandlerError, InputError
from headrace.handler import Context


class DetectorOptions(ModuleOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `object_detector`; docs/handlers.md lists them."""

    max_pixels: MaxPixels = DEFAULT_MAX_PIXELS
    index_to_name: str | None = None
    min_score: Annotated[float, Meta(ge=0, le=1)] = MIN_SCORE


class ObjectDetector(ExplainingHandler, ImageHandler):
    """Returns the objects in an image: their boxes, labels and scores."""

    options_kind = DetectorOptions

    @override
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        options: DetectorOptions = self.options
        self.names = load_names(context, options.index_to_name)
        self.model = load_module(context, options).to(context.device).eval()

    @override
    def item(self, data: Any) -> Tensor:
        """Return the tones (3, H, W) of an image, or the tensor that a list is."""
        image = image_or_tensor(data, self.options.max_pixels)
        return image if isinstance(image, Tensor) else pixels(to_rgb(image))

    @override
    def predict(self, items: Sequence[Tensor]) -> Any:
        with torch.inference_mode():
            on_device = (item.to(self.context.device) for item in items)
            images = [one / 255 if one.dtype is torch.uint8 else one for one in on_device]
            detected = self.model(images)
        if not isinstance(detected, (list, tuple)) or len(detected) != len(images):
            raise HandlerError(
                f"the model returned a {type(detected).__name__} for {len(images)} images; a "
                "detection model returns a list with one mapping for each"
            )
        return detected

    @override
    def results(self, outputs: Any) -> list[Any]:
        return [
            [
                {self.names.get(label, str(label)): box, "score": score}
                for box, label, score in found_objects(detected, self.options.min_score)
            ]
            for detected in outputs
        ]

    @override
    def explain(self, item: Tensor, target: Any) -> Any:
        raise InputError(
            "this model detects objects, and has no explanations; ask for a prediction"
        )
