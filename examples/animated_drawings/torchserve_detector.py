"""The detector as a handler of TorchServe; Animated Drawings' client reads its answers."""

import json
from pathlib import Path

from images import pixels
from networks import CLASSES, Detector
from safetensors.torch import load_file

from ts.torch_handler.base_handler import BaseHandler


class DrawnHumanoidDetector(BaseHandler):
    """Answers with a list of `{"bbox", "score"}`."""

    network = staticmethod(lambda: Detector(len(CLASSES)))

    def initialize(self, context):
        """Load the network with the weights of the archive."""
        weights = context.manifest["model"]["serializedFile"]
        self.model = self.network().eval()
        self.model.load_state_dict(
            load_file(Path(context.system_properties["model_dir"]) / weights)
        )
        self.initialized = True

    def preprocess(self, data):
        """Return the drawings as tensors: the field `data` of a form, or the whole body."""
        return [pixels(bytes(row.get("data") or row.get("body"))) for row in data]

    def inference(self, data):
        """Return what is on each drawing."""
        return self.model(data)

    def postprocess(self, data):
        """Return the figures as JSON."""
        return [json.dumps(figures(found)) for found in data]


def figures(found):
    """Return the boxes and scores of the figures on one drawing."""
    rows = zip(found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True)
    return [
        {"bbox": box, "score": score} for box, score, label in rows if CLASSES[label] == "humanoid"
    ]
