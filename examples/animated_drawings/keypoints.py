"""The joints of a figure as COCO's keypoints.

Nose, eyes and ears are the middle of the head, since the drawings for the training have no
joints there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from networks import JOINTS, POSE_PX, square, view
from torch import Tensor

#: COCO's keypoints: nose, eyes and ears are the head.
COCO = (
    "head", "head", "head", "head", "head",
    "left_shoulder", "right_shoulder", "left_elbow", "right_elbow", "left_wrist", "right_wrist",
    "left_hip", "right_hip", "left_knee", "right_knee", "left_ankle", "right_ankle",
)  # fmt: skip


@torch.inference_mode()
def joints_of(
    model: Callable[[Tensor], tuple[Tensor, Tensor]], images: list[Tensor]
) -> list[Tensor]:
    """Return the joints of figures, each of which fills its image: 16 x 3, as x, y and a score."""
    frames = [square(image)[0] for image in images]
    views = [view(image, frame[None], POSE_PX) for image, frame in zip(images, frames, strict=True)]
    places, scores = model(torch.cat(views))
    return [
        torch.cat([at * (frame[2] - frame[0]) + frame[:2], score[:, None]], 1).cpu()
        for at, score, frame in zip(places, scores, frames, strict=True)
    ]


def described(joints: Tensor) -> dict[str, Any]:
    """Return one figure as JSON."""
    at = dict(zip(JOINTS, joints, strict=True))
    at["head"] = (at["neck"] + at["head_top"]) / 2
    keypoints = [[round(value, 2) for value in at[name].tolist()] for name in COCO]
    return {"score": round(float(joints[:, 2].mean()), 4), "keypoints": keypoints}
