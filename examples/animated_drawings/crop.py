"""Cuts the surest figure out of its drawing. In the models file: `handler: crop.py`.

The input is `{"input": drawing, "detect": detections}`. The result is `{"image": PNG, "box",
"mask", "view"}`; here the view is in pixels of the crop.
"""

from __future__ import annotations

import io

from images import on_paper, part, png
from PIL import Image

from headrace import Handler, errors

#: The longest side of a crop, in pixels, as in Animated Drawings.
LONGEST_PX = 1000


class CropFigure(Handler):
    """Returns the figure with the highest score."""

    accepts_nested_bytes = True

    def inference(self, items):
        """Cut each drawing; one without a figure fails alone."""
        return [cut(item["input"], item["detect"]) for item in items]

    def preprocess(self, inputs):
        """Check the inputs."""
        return [
            x
            if isinstance(x, dict) and {"input", "detect"} <= x.keys()
            else errors.InputError("send input and detect")
            for x in inputs
        ]

    def postprocess(self, outputs):
        """Return the crops, and errors in their places."""
        return outputs


def cut(drawing, detections):
    """Return the crop of one figure."""
    if not detections:
        return errors.InputError(
            "there is no figure on this drawing; draw a head, a body, arms and legs"
        )
    best = max(detections, key=lambda found: found["score"])
    with Image.open(io.BytesIO(drawing)) as opened:
        image = on_paper(opened)
    left, top, right, bottom = (round(x) for x in best["bbox"])
    left, top, right, bottom = (
        max(left, 0),
        max(top, 0),
        min(right, image.width),
        min(bottom, image.height),
    )
    if right - left < 8 or bottom - top < 8:
        return errors.InputError("the figure is smaller than 8 pixels; send a larger drawing")
    crop = image.crop((left, top, right, bottom))
    scale = min(1.0, LONGEST_PX / max(crop.size))
    crop = crop.resize((max(1, round(crop.width * scale)), max(1, round(crop.height * scale))))
    x0, y0, x1, y1 = best["view"]
    view = [(x0 - left) * scale, (y0 - top) * scale, (x1 - left) * scale, (y1 - top) * scale]
    return {
        "image": part(png(crop)),
        "box": [left, top, right, bottom],
        "mask": part(best["mask"]),
        "view": view,
    }
