"""Makes a character of a figure with its joints. In the models file: `handler: character.py`.

The input is `{"crop", "mask", "pose"}`. The result has what Animated Drawings reads: `texture`
and `mask` as PNG, and `char_cfg`, the text of char_cfg.yaml.
"""

from __future__ import annotations

import io

import yaml
from images import part, png
from PIL import Image

from headrace import Handler

#: The skeleton of Animated Drawings: name, parent, and the COCO keypoints whose mean is the joint.
SKELETON = (
    ("root", None, (11, 12)),
    ("hip", "root", (11, 12)),
    ("torso", "hip", (5, 6)),
    ("neck", "torso", (0,)),
    ("right_shoulder", "torso", (6,)),
    ("right_elbow", "right_shoulder", (8,)),
    ("right_hand", "right_elbow", (10,)),
    ("left_shoulder", "torso", (5,)),
    ("left_elbow", "left_shoulder", (7,)),
    ("left_hand", "left_elbow", (9,)),
    ("right_hip", "root", (12,)),
    ("right_knee", "right_hip", (14,)),
    ("right_foot", "right_knee", (16,)),
    ("left_hip", "root", (11,)),
    ("left_knee", "left_hip", (13,)),
    ("left_foot", "left_knee", (15,)),
)


class MakeCharacter(Handler):
    """Returns characters that Animated Drawings can move."""

    accepts_nested_bytes = True

    def inference(self, items):
        """Return a character for each figure."""
        return [character(**item) for item in items]


def character(crop, mask, pose):
    """Return one character."""
    with Image.open(io.BytesIO(crop["image"])) as opened:
        texture = opened.convert("RGBA")
    points = pose[0]["keypoints"]
    skeleton = [
        {"loc": [round(mean(points, of, axis)) for axis in (0, 1)], "name": name, "parent": parent}
        for name, parent, of in SKELETON
    ]
    config = {"skeleton": skeleton, "height": texture.height, "width": texture.width}
    return {"texture": part(png(texture)), "mask": part(mask), "char_cfg": yaml.safe_dump(config)}


def mean(points, of, axis):
    """Return the mean of some keypoints along an axis."""
    return sum(points[n][axis] for n in of) / len(of)
