"""A handler that finds the digits on a page, for a pipeline that classifies each digit.

In the models file: `handler: find_digits.py`, and a pipeline that spreads its `crops` over the
model `digits`. A page is dark on light or light on dark, with space between the digits. The
handler searches rows and columns without ink; nothing is trained.
"""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from headrace import Handler, errors

#: Minimum difference between ink and paper, of 255 tones.
CONTRAST = 64
#: Smaller marks, in pixels, are ignored as dust.
DUST_PX = 6
MARGIN_PX = 3
MAX_PIXELS = 50_000_000


class FindDigits(Handler):
    """Returns `{"crops": [{"image": {"content_type", "base64"}, "box"}, …]}` in reading order."""

    def preprocess(self, inputs):
        """Return the pages in grey; an input that is not an image fails alone."""
        return [self.page(data) for data in inputs]

    def inference(self, items):
        """Return the digits of each page."""
        return [{"crops": [crop(page, box) for box in boxes(page)]} for page in items]

    @staticmethod
    def page(data):
        """Decode one input."""
        if not isinstance(data, bytes):
            return errors.InputError("send an image of a page")
        try:
            with Image.open(io.BytesIO(data)) as image:
                if image.width * image.height > MAX_PIXELS:
                    return errors.InputError(f"the page has more than {MAX_PIXELS} pixels")
                return image.convert("L")
        except (OSError, ValueError) as error:
            return errors.InputError(f"this is not an image: {error}")


def boxes(page):
    """Return the boxes of the digits, line by line, from left to right."""
    tones = np.asarray(page, dtype=np.int16)
    ink = np.abs(tones - np.median(tones)) > CONTRAST
    for top, bottom in runs(ink.any(axis=1)):
        for left, right in runs(ink[top:bottom].any(axis=0)):
            rows = np.flatnonzero(ink[top:bottom, left:right].any(axis=1))
            box = (left, top + rows[0], right, top + rows[-1] + 1)
            if max(box[2] - box[0], box[3] - box[1]) >= DUST_PX:
                yield tuple(map(int, box))


def runs(marks):
    """Return begin and end of each run of marks."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2)


def crop(page, box):
    """Return one digit with a margin of paper as a PNG."""
    left, top, right, bottom = box
    around = (left - MARGIN_PX, top - MARGIN_PX, right + MARGIN_PX, bottom + MARGIN_PX)
    # Outside the page there is paper too.
    paper = int(np.median(np.asarray(page)))
    canvas = Image.new("L", (around[2] - around[0], around[3] - around[1]), paper)
    canvas.paste(page.crop(box), (MARGIN_PX, MARGIN_PX))
    file = io.BytesIO()
    canvas.save(file, "PNG")
    image = {"content_type": "image/png", "base64": base64.b64encode(file.getvalue()).decode()}
    return {"image": image, "box": list(box)}
