"""The detector as a handler of TorchServe; Animated Drawings' client reads its answers."""

import json
from pathlib import Path

from images import pixels
from networks import CLASSES, Detector
from safetensors.torch import load_file

from ts.torch_handler.base_handler import BaseHandler


class DrawnHumanoidDetector(BaseHandler):
    """Answers with a list of `{"bbox", "score"}`.

    A file that is no image gets the status 400 and the reason; the rest of its batch is answered.
    """

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
        """Return the drawings as tensors, or an error in the place of one that is no image."""
        return [self.read(row, place) for place, row in enumerate(data)]

    def read(self, row, place):
        """Return one drawing: the field `data` of a form, or the whole body."""
        body = row.get("data") or row.get("body") or b""
        try:
            return pixels(body.encode() if isinstance(body, str) else bytes(body))
        except (TypeError, ValueError) as error:
            self.context.set_response_status(400, "Bad Request", place)
            return error

    def inference(self, data):
        """Return what is on each drawing; an error stays in its place."""
        good = [image for image in data if not isinstance(image, Exception)]
        seen = iter(self.look(good) if good else ())
        return [image if isinstance(image, Exception) else next(seen) for image in data]

    def look(self, images):
        """Return what is on each drawing."""
        return self.model(images)

    def postprocess(self, data):
        """Return the answers as JSON, and the reason of each error as text."""
        return [
            str(seen) if isinstance(seen, Exception) else json.dumps(self.answer(seen))
            for seen in data
        ]

    def answer(self, seen):
        """Return the boxes and scores of the figures on one drawing."""
        rows = zip(seen.boxes.tolist(), seen.scores.tolist(), seen.labels.tolist(), strict=True)
        return [
            {"bbox": box, "score": score}
            for box, score, label in rows
            if CLASSES[label] == "humanoid"
        ]
