"""Finds the joints of a figure that fills its image. In the models file: `handler: pose.py`.

A result is a list with one figure: `{"score", "keypoints"}`. The keypoints are the 17 of COCO,
as those of the pose model of Animated Drawings: `[x, y, score]` in pixels of the image.
"""

from __future__ import annotations

from pathlib import Path

from detector import LONGEST_PX, drawing
from keypoints import described, joints_of
from networks import JOINTS, Pose
from safetensors.torch import load_file

from headrace import Handler
from headrace.handler import Exportable


class FindJoints(Handler):
    """Returns keypoints, as the pose model of Animated Drawings does."""

    overlap = True
    preprocess_per_item = True

    def initialize(self, context):
        """Load the network."""
        super().initialize(context)
        folder = Path(__file__).parent
        self.model = Pose(len(JOINTS))
        self.model.load_state_dict(load_file(folder / "weights/pose.safetensors"))
        self.model.to(context.device).eval()
        self.forward = self.model
        self.example_input = (folder / "drawings/wave.jpg").read_bytes()

    def exportable(self):
        """Return the network, for `optimize`."""
        return Exportable(self.model, self.use)

    def use(self, forward):
        """Run this in place of the network."""
        self.forward = forward

    def preprocess(self, inputs):
        """Return the figures as tensors; an input that is no image fails alone."""
        return [drawing(data, LONGEST_PX) for data in inputs]

    def inference(self, items):
        """Return the joints of each figure."""
        found = joints_of(self.forward, [image.to(self.context.device) for image, _ in items])
        return [
            joints * joints.new_tensor([scale, scale, 1])
            for joints, (_, scale) in zip(found, items, strict=True)
        ]

    def postprocess(self, outputs):
        """Return the keypoints as JSON."""
        return [[described(joints)] for joints in outputs]
