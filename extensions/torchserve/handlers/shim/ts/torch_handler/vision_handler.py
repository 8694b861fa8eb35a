"""The base class of handlers of images."""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from handlers.common.explanations import captum_attr, image_attributions, read_target
from handlers.common.images import FORMATS, HIGHEST_MAX_PIXELS, decode, from_base64
from handlers.common.vision import tensor_of
from headrace.errors import InputError
from ts.handler_utils.timer import timed
from ts.handler_utils.transforms import Compose
from ts.torch_handler.base_handler import BaseHandler

#: Further formats that old clients send. Pillow's parsers of others start programs or are rare.
_FORMATS: Final = (*FORMATS, "TIFF", "PPM", "JPEG2000", "ICO")
#: How many times as long as wide an image of a handler with steps of its own may be.
_PROPORTION_MAX: Final = 200
#: Pillow's own limit.
_MAX_PIXELS: Final = 2 * HIGHEST_MAX_PIXELS


class VisionHandler(BaseHandler):
    """Decodes images; a class of its own has `image_processing`, and may have `postprocess`.

    Attributes:
        image_processing: makes a tensor of a Pillow image, such as a `Compose` of torchvision. It
            gets the image in its own mode.
    """

    image_processing: Any

    @override
    def initialize(self, context: Any) -> None:
        """Load the model; without `limit_max_image_pixels`, lift Pillow's limit of pixels."""
        super().initialize(context)
        self.initialized = True
        if not context.system_properties.get("limit_max_image_pixels"):
            Image.MAX_IMAGE_PIXELS = None

    @functools.cached_property
    def ig(self) -> Any:
        """Captum's `IntegratedGradients` of the model; Captum is imported here."""
        return captum_attr().IntegratedGradients(self.model)

    @override
    @timed
    def preprocess(self, data: Any) -> Any:
        """Return the batch as a tensor (N, …) on the device."""
        return self._batch([self._tensor(row) for row in data])

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> Any:
        """Return the integrated gradients of each image, as nested lists of its tensor's shape."""
        return image_attributions(self.ig, tensor_data, read_target(target))

    def _tensor(self, row: Any) -> Any:
        image = value_of(row)
        if isinstance(image, str):
            image = from_base64(image)
        if isinstance(image, (list, tuple)):
            return tensor_of(image)
        limit = None if Image.MAX_IMAGE_PIXELS is None else _MAX_PIXELS
        found = decode(image, max_pixels=limit, upright=False, formats=_FORMATS)
        if not isinstance(self.image_processing, Compose):
            _check_proportions(found)
        return self.image_processing(found)

    def _batch(self, images: list[Tensor]) -> Any:
        return torch.stack(images).to(self.device)


def _check_proportions(image: Image.Image) -> None:
    """Refuse what costs gigabytes when its shorter side grows, as in torchvision's `Resize`."""
    if max(image.size) > _PROPORTION_MAX * min(image.size):
        raise InputError(
            f"the image is {image.width} x {image.height} pixels; at most {_PROPORTION_MAX} times "
            "as long as wide is allowed; send a part of it"
        )


def value_of(row: Any) -> Any:
    """Return the input of a row: its field `data`, else `body`; the row itself from an envelope.

    Raises:
        InputError: the row has neither.
    """
    value = row.get("data") or row.get("body") if isinstance(row, dict) else row
    if value is None:
        names = ", ".join(map(repr, row)) if isinstance(row, dict) and row else "nothing"
        raise InputError(
            f"the request has {names}; send the input as the body, or as the field 'data'"
        )
    return value
