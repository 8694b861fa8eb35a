"""An object detector in plain torch, as a handler. Its weights are random: only its speed counts.

It follows Tian et al., 2019, "FCOS: Fully Convolutional One-Stage Object Detection". For each point
of three feature maps it returns scores of classes, and the distances to the sides of a box.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from typing_extensions import override

from handlers.common.images import DEFAULT_MAX_PIXELS, decode, drawing, to_rgb
from handlers.resnet import resnet18, resnet50
from headrace.handler import Context, Exportable, Handler

CLASSES: Final = 80
SIDES: Final = 4
BEST: Final = 100
OVERLAP_MAX: Final = 0.5
SEED: Final = 0


class DetectorNet(nn.Module):
    """A ResNet, a feature pyramid of three maps, and a head that all of them share."""

    def __init__(self, *, small: bool = False) -> None:
        super().__init__()
        self.backbone = resnet18() if small else resnet50()
        widths = (128, 256, 512) if small else (512, 1024, 2048)
        inner = 32 if small else 128
        self.lateral = nn.ModuleList(nn.Conv2d(width, inner, 1) for width in widths)
        self.head = nn.Sequential(
            nn.Conv2d(inner, inner, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(inner, CLASSES + SIDES, 3, padding=1),
        )  # fmt: skip

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Return (N, points, classes and sides) of images (N, 3, H, W)."""
        body = self.backbone
        out = body.layer1(body.maxpool(body.relu(body.bn1(body.conv1(images)))))
        found: list[Tensor] = []
        for layer in (body.layer2, body.layer3, body.layer4):
            out = layer(out)
            found.append(out)
        above: Tensor | None = None
        outputs: list[Tensor] = []
        for lateral, features in zip(reversed(self.lateral), reversed(found), strict=True):
            level = lateral(features)
            if above is not None:
                level = level + nn.functional.interpolate(above, scale_factor=2.0)
            above = level
            outputs.append(self.head(level).flatten(2))
        return torch.cat(outputs, 2).permute(0, 2, 1)


class Detector(Handler):
    """Boxes of an image, the likeliest first. Options: `side`, `per_image`, `small`."""

    preprocess_per_item = True

    @override
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        torch.manual_seed(SEED)
        self.model = DetectorNet(small=bool(context.options.get("small"))).eval()
        self.model.to(context.device)
        self.order = torch.contiguous_format
        if context.channels_last == "on":
            self.order = torch.channels_last
            self.model.to(memory_format=self.order)  # type: ignore[call-overload]
        self.forward: Any = self.model

    @override
    def exportable(self) -> Exportable:
        return Exportable(self.model, self.use, lambda output: output[..., :CLASSES].amax(1))

    def use(self, forward: Any) -> None:
        """Run this in the place of the module."""
        self.forward = forward

    @override
    def example_input(self) -> bytes | None:
        return drawing(DEFAULT_MAX_PIXELS)

    @override
    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return [self.item(data) for data in inputs]

    def item(self, data: Any) -> Tensor:
        """Return an image (3, side, side), normalised."""
        side = int(self.context.options["side"])
        image = to_rgb(decode(data)).resize((side, side), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float()
        return (pixels / 255 - 0.45) / 0.225

    @override
    def inference(self, items: list[Tensor]) -> list[Tensor]:
        with torch.inference_mode():
            if self.context.options.get("per_image"):
                # As a handler is often written first: one image after the other.
                return [self.run(item[None])[0] for item in items]
            return list(self.run(torch.stack(items)))

    def run(self, images: Tensor) -> Tensor:
        """Return the output of the module for images (N, 3, side, side)."""
        output: Tensor = self.forward(
            images.to(self.context.device).contiguous(memory_format=self.order)
        )
        return output.cpu()

    @override
    def postprocess(self, outputs: list[Tensor]) -> list[Any]:
        return [_boxes(output) for output in outputs]


class Overlapping(Detector):
    """The same; it keeps nothing on itself between its verbs, so they may overlap."""

    overlap = True


def _boxes(output: Tensor) -> list[dict[str, Any]]:
    """Return the best boxes that do not overlap much."""
    scores, labels = output[:, :CLASSES].sigmoid().max(1)
    best, points = scores.topk(min(BEST, len(scores)))
    sides = output[points, CLASSES:].abs()
    low, high = points[:, None] - sides[:, :2], points[:, None] + sides[:, 2:]
    size = (high - low).clamp(min=0).prod(1)
    meet = torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)
    shared = meet.clamp(min=0).prod(2)
    overlap = shared / (size[:, None] + size - shared).clamp(min=1e-6)
    kept: list[int] = []
    for n in range(len(best)):
        if not kept or float(overlap[n, kept].max()) <= OVERLAP_MAX:
            kept.append(n)
    return [
        {
            "label": int(labels[points[n]]),
            "score": round(float(best[n]), 4),
            "box": [*low[n].tolist(), *high[n].tolist()],
        }
        for n in kept
    ]
