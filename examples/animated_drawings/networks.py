"""The two networks: a detector with masks in two stages, and a pose model with 16 joints.

The detector follows Mask R-CNN (He et al., 2017) in small. Its first stage proposes boxes with
a class; as in CenterNet (Zhou et al., 2019), the peaks of a map are the centres. Its second
stage looks at each proposal closely, and returns a mask and the exact sides. It looks at the
image itself, not at the features of the first stage, so a small figure is as sharp as a large
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: What the detector tells apart; only a humanoid has joints.
CLASSES = ("humanoid", "house", "tree", "sun")
#: The 16 joints of the MPII data set, in its order. The figure's right is left on the drawing.
JOINTS = (
    "right_ankle", "right_knee", "right_hip", "left_hip", "left_knee", "left_ankle", "pelvis",
    "thorax", "neck", "head_top", "right_wrist", "right_elbow", "right_shoulder", "left_shoulder",
    "left_elbow", "left_wrist",
)  # fmt: skip
#: The side of the square that the first stage sees, in pixels; its maps are a quarter of it.
SCENE_PX = 160
STRIDE = 4
#: The side of the squares that the second stage and the pose model see.
CLOSE_PX = 96
POSE_PX = 112
#: How much larger than a proposal the second stage's view is.
AROUND = 1.3


class Detections(NamedTuple):
    """What the detector sees on one drawing, the surest first.

    Attributes:
        boxes: n x 4: left, top, right, bottom, in pixels of the drawing.
        scores: n values from 0 to 1.
        labels: n indices of classes.
        masks: n x 96 x 96 values from 0 to 1, each over its view.
        views: n x 4: the boxes that the masks cover.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    masks: Tensor
    views: Tensor


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution with its normalisation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.SiLU(inplace=True),
    )


class UNet(nn.Module):
    """An encoder and a decoder with shortcuts; the output is as fine as the level `top`."""

    def __init__(self, widths: tuple[int, ...], top: int = 0) -> None:
        super().__init__()
        self.top = top
        before = (3, *widths[:-1])
        self.down = nn.ModuleList(
            nn.Sequential(block(a, b, 1 if level == 0 else 2), block(b, b))
            for level, (a, b) in enumerate(zip(before, widths, strict=True))
        )
        self.up = nn.ModuleList(
            block(widths[level] + widths[level + 1], widths[level])
            for level in range(top, len(widths) - 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return features of images (batch x 3 x height x width)."""
        levels = []
        for down in self.down:
            images = down(images)
            levels.append(images)
        x = levels[-1]
        for level in range(len(levels) - 2, self.top - 1, -1):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = self.up[level - self.top](torch.cat([x, levels[level]], 1))
        return x


class Proposals(nn.Module):
    """The first stage: a map of centres for each class, and the sides of the box at each place."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = UNet((12, 24, 48, 96, 128), top=2)
        self.centres = nn.Sequential(block(48, 48), nn.Conv2d(48, classes, 1))
        self.sides = nn.Sequential(block(48, 48), nn.Conv2d(48, 4, 1))
        nn.init.constant_(self.centres[1].bias, -4.0)  # type: ignore[arg-type]

    def forward(self, scenes: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the centres, and distances to the sides by the size of the scene."""
        features = self.body(scenes)
        return self.centres(features).float(), F.softplus(self.sides(features).float()) * 0.25


class Close(nn.Module):
    """The second stage: a mask, and where the box's sides are in the view."""

    def __init__(self) -> None:
        super().__init__()
        self.body = UNet((16, 32, 64, 96))
        self.mask = nn.Conv2d(16, 1, 1)
        self.spread = nn.Conv2d(16, 24, 1)
        self.ends = nn.Conv1d(48, 2, 7, padding=3)

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Return mask logits (n x 96 x 96), and sides (n x 4) as shares of the view."""
        features = self.body(views)
        spread = self.spread(features)
        sides = []
        for axis in (2, 3):
            profile = torch.cat([spread.amax(axis), spread.mean(axis)], 1)
            chances = self.ends(profile).float().softmax(2)
            places = torch.arange(chances.shape[2], device=chances.device) + 0.5
            sides.append((chances * places).sum(2) / chances.shape[2])
        (left, right), (top, bottom) = (x.unbind(1) for x in sides)
        return self.mask(features)[:, 0].float(), torch.stack([left, top, right, bottom], 1)


class Detector(nn.Module):
    """Finds things on drawings: boxes, classes and masks."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.proposals = Proposals(classes)
        self.close = Close()

    @torch.inference_mode()
    def forward(
        self,
        images: list[Tensor],
        min_score: float = 0.3,
        limit: int = 10,
        stages: Sequence[Callable[[Tensor], tuple[Tensor, Tensor]]] = (),
    ) -> list[Detections]:
        """Return what is on each image.

        Args:
            images: each 3 x height x width, from 0 to 1, of any size.
            min_score: the lowest score.
            limit: the most detections of an image.
            stages: what runs in place of `proposals` and `close`.
        """
        propose_all, look_close = stages or (self.proposals, self.close)
        scenes = torch.stack([view(image, square(image), SCENE_PX)[0] for image in images])
        centres, sides = propose_all(scenes)
        proposed = [
            propose(image, *maps, min_score, limit)
            for image, *maps in zip(images, centres.sigmoid(), sides, strict=True)
        ]
        views = [around(boxes) for boxes, _, _ in proposed]
        if not sum(map(len, views)):
            return [
                Detections(b, s, k, b.new_zeros(0, CLOSE_PX, CLOSE_PX), b) for b, s, k in proposed
            ]
        crops = torch.cat(
            [view(i, v, CLOSE_PX) for i, v in zip(images, views, strict=True) if len(v)]
        )
        masks, shares = look_close(crops)
        counts = [len(v) for v in views]
        result = []
        for (_, scores, labels), at, mask, share in zip(
            proposed, views, masks.sigmoid().split(counts), shares.split(counts), strict=True
        ):
            size = at[:, 2:] - at[:, :2]
            boxes = at[:, :2].repeat(1, 2) + share * size.repeat(1, 2)
            result.append(Detections(boxes, scores, labels, mask, at))
        return result


class Pose(nn.Module):
    """Finds the joints of a figure: one map a joint, whose mean place is the joint."""

    def __init__(self, joints: int) -> None:
        super().__init__()
        self.body = UNet((16, 32, 64, 96, 128), top=1)
        self.maps = nn.Conv2d(32, joints, 1)

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Return places (n x joints x 2, shares of the view) and how sure each is, from 0 to 1."""
        maps = self.maps(self.body(views)).float()
        _, _, height, width = maps.shape
        chances = maps.flatten(2).softmax(2).view_as(maps)
        x = (chances.sum(2) * (torch.arange(width, device=maps.device) + 0.5)).sum(2) / width
        y = (chances.sum(3) * (torch.arange(height, device=maps.device) + 0.5)).sum(2) / height
        return torch.stack([x, y], 2), maps.flatten(2).amax(2).sigmoid()


def square(image: Tensor) -> Tensor:
    """Return the box of the smallest square around an image (1 x 4)."""
    _, height, width = image.shape
    side = max(height, width)
    left, top = (width - side) / 2, (height - side) / 2
    return image.new_tensor([[left, top, left + side, top + side]])


def around(boxes: Tensor) -> Tensor:
    """Return square views around boxes (n x 4)."""
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    half = (boxes[:, 2:] - boxes[:, :2]).amax(1, keepdim=True) * AROUND / 2
    return torch.cat([centre - half, centre + half], 1)


def view(image: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Return what is in square boxes, as n x 3 x side x side; beyond the image its edge goes on."""
    _, height, width = image.shape
    size = image.new_tensor([width, height])
    places = (torch.arange(side, dtype=image.dtype, device=image.device) + 0.5) / side
    x = boxes[:, None, 0] + (boxes[:, 2] - boxes[:, 0])[:, None] * places
    y = boxes[:, None, 1] + (boxes[:, 3] - boxes[:, 1])[:, None] * places
    grid = torch.stack([x[:, None, :].expand(-1, side, -1), y[:, :, None].expand(-1, -1, side)], 3)
    # Several pixels become one: an average first, so that a thin line does not vanish.
    shrink = int(((boxes[:, 2] - boxes[:, 0]).amax() / side).floor().clamp(min=1))
    source = (
        F.avg_pool2d(image[None], shrink, ceil_mode=True, count_include_pad=False)
        if shrink > 1
        else image[None]
    )
    full = (
        image.new_tensor([source.shape[3] * shrink, source.shape[2] * shrink])
        if shrink > 1
        else size
    )
    return F.grid_sample(
        source.expand(len(boxes), -1, -1, -1),
        grid / full * 2 - 1,
        padding_mode="border",
        align_corners=False,
    )


def propose(
    image: Tensor, centres: Tensor, sides: Tensor, min_score: float, limit: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes, scores and labels of one image: the peaks of its map of centres."""
    peaks = centres * (F.max_pool2d(centres[None], 5, 1, 2)[0] == centres)
    scores, at = peaks.flatten().topk(min(limit, peaks.numel()))
    at = at[scores >= min_score]
    scores = scores[: len(at)]
    classes, cells = (
        at // (centres.shape[1] * centres.shape[2]),
        at % (centres.shape[1] * centres.shape[2]),
    )
    y, x = cells // centres.shape[2], cells % centres.shape[2]
    scene = square(image)[0]
    scale = scene[2] - scene[0]
    place = torch.stack([x, y], 1).to(centres.dtype) + 0.5
    centre = scene[:2] + place / centres.shape[1] * scale
    reach = sides[:, y, x].T * scale
    boxes = torch.cat([centre - reach[:, :2], centre + reach[:, 2:]], 1)
    keep = apart(boxes)
    return boxes[keep], scores[keep], classes[keep]


def apart(boxes: Tensor, most: float = 0.5) -> list[int]:
    """Return the indices of the boxes that overlap no surer one (non-maximum suppression)."""
    kept: list[int] = []
    for index, box in enumerate(boxes):
        if all(float(overlap(box, boxes[other])) < most for other in kept):
            kept.append(index)
    return kept


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection of boxes (… x 4) by their union."""
    size = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(
        min=0
    )
    both = size.prod(-1)
    areas = sum((x[..., 2:] - x[..., :2]).clamp(min=0).prod(-1) for x in (a, b))
    return both / (areas - both).clamp(min=1e-9)
