"""torchvision's Mask R-CNN with random weights, as a handler. Half precision is autocast's.

Every image has OBJECTS objects, whatever it shows: the work is the same as with trained weights on
an image with as many objects.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from handlers.common.images import DEFAULT_MAX_PIXELS, decode, drawing, to_rgb
from handlers.common.tensors import Fetched, Transfer
from headrace.errors import InputError
from headrace.handler import Context, Handler

OBJECTS: Final = 20
SEED: Final = 0


class Detector(Handler):
    """Boxes, scores and the areas of masks. The images of a batch are of one size."""

    overlap = True
    preprocess_per_item = True

    @override
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        detection = importlib.import_module("torchvision.models.detection")
        torch.manual_seed(SEED)
        model = detection.maskrcnn_resnet50_fpn(
            weights=None, weights_backbone=None, min_size=context.options["min_px"],
            box_score_thresh=0.0, box_detections_per_img=OBJECTS,
        )  # fmt: skip
        self.model = model.to(context.device).eval()
        self.half = context.options["precision"] == "half"
        self.transfer = Transfer(context.device)

    @override
    def example_input(self) -> bytes | None:
        return drawing(DEFAULT_MAX_PIXELS)

    @override
    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return [_pixels(data) for data in inputs]

    @override
    def inference(self, items: list[Tensor]) -> Fetched:
        kind = self.transfer.device.type
        with torch.inference_mode(), torch.autocast(kind, torch.float16, enabled=self.half):
            images = self.transfer.to_device(items).permute(0, 3, 1, 2).float() / 255
            return self.transfer.to_host(*(_rows(found) for found in self.model(list(images))))

    @override
    def postprocess(self, outputs: Fetched) -> list[Any]:
        return [{"objects": rows.tolist()} for rows in outputs.wait()]


def _pixels(data: Any) -> Tensor | InputError:
    try:
        image = decode(data, max_pixels=DEFAULT_MAX_PIXELS)
    except InputError as error:
        return error.with_traceback(None)
    return torch.from_numpy(np.array(to_rgb(image)))


def _rows(found: dict[str, Tensor]) -> Tensor:
    """Return an image's objects: corners of the box, score, area of the mask in pixels."""
    areas = (found["masks"] > 0.5).sum(dim=(1, 2, 3))
    columns = found["boxes"], found["scores"][:, None], areas[:, None]
    return torch.cat([column.float() for column in columns], dim=1)
