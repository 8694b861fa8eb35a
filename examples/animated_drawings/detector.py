"""Finds the figures on a drawing. In the models file: `handler: detector.py`.

A result is a list, the surest first: `{"bbox": [left, top, right, bottom], "score", "label"}`,
in pixels. With `options: {masks: true}` each has a `mask` too: a grey PNG, and the box `view`
that it covers.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from images import part, png, shrunk
from networks import CLASSES, Detector
from PIL import Image
from safetensors.torch import load_file

from headrace import Handler, errors
from headrace.handler import Exportable

#: A larger drawing is shrunk to this: eight photos of 30 megapixels would take 3 GB.
LONGEST_PX = 2000


class FindFigures(Handler):
    """Returns boxes and scores, as the detector of Animated Drawings does."""

    overlap = True
    preprocess_per_item = True

    def initialize(self, context):
        """Load the detector."""
        super().initialize(context)
        folder = Path(__file__).parent
        options = {"labels": ["humanoid"], "masks": False, "min_score": 0.4, **context.options}
        self.labels, self.masks = set(options["labels"]), options["masks"]
        self.min_score = options["min_score"]
        self.model = Detector(len(CLASSES))
        self.model.load_state_dict(load_file(folder / "weights/detector.safetensors"))
        self.model.to(context.device).eval()
        self.stages = [self.model.proposals, self.model.close]
        self.example_input = (folder / "drawings/wave.jpg").read_bytes()

    def exportable(self):
        """Return the two stages, for `optimize`."""
        stages = self.model.proposals, self.model.close
        return [Exportable(stage, partial(self.use, n)) for n, stage in enumerate(stages)]

    def use(self, n, forward):
        """Run this in place of a stage."""
        self.stages[n] = forward

    def preprocess(self, inputs):
        """Return the drawings as tensors; an input that is no image fails alone."""
        return [drawing(data, LONGEST_PX) for data in inputs]

    def inference(self, items):
        """Return what is on each drawing."""
        images = [image.to(self.context.device) for image, _ in items]
        return [
            found._replace(boxes=found.boxes * scale, views=found.views * scale)
            for found, (_, scale) in zip(
                self.model(images, self.min_score, stages=self.stages), items, strict=True
            )
        ]

    def postprocess(self, outputs):
        """Return the things of the wanted labels."""
        return [[self.described(found, n) for n in self.wanted(found)] for found in outputs]

    def wanted(self, found):
        """Return the places of what the options ask for."""
        return [n for n, label in enumerate(found.labels.tolist()) if CLASSES[label] in self.labels]

    def described(self, found, n):
        """Return one thing as JSON."""
        thing = {
            "bbox": [round(x, 1) for x in found.boxes[n].tolist()],
            "score": round(float(found.scores[n]), 4),
            "label": CLASSES[int(found.labels[n])],
        }
        if self.masks:
            tones = (found.masks[n] * 255).byte().cpu().numpy()
            thing["mask"] = part(png(Image.fromarray(tones)))
            thing["view"] = [round(x, 2) for x in found.views[n].tolist()]
        return thing


def drawing(data, longest_px):
    """Return an input as a tensor, and its scale; an error if it is no image."""
    try:
        return shrunk(data, longest_px)
    except ValueError as error:
        return errors.InputError(str(error))
