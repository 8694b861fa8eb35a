"""A handler that finds the digits on a page, for a pipeline that names each of them.

In the models file: `handler: find_digits.py`, and a pipeline that spreads its `crops` over the
model `digits`. A page is dark on light or light on dark; digits of a line stand apart from each
other. It looks for rows and columns without ink; nothing is trained.
"""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from headrace import Handler, errors

#: Tones out of 255 by which ink differs from paper.
CONTRAST = 64
#: A mark that is smaller than this, in pixels, is dust.
DUST_PX = 6
MARGIN_PX = 3
MAX_PIXELS = 50_000_000


class FindDigits(Handler):
    """`{"crops": [{"image": {"content_type", "base64"}, "box"}, …]}`, as one reads."""

    def preprocess(self, inputs):
        """The pages in grey; what is no image fails alone."""
        return [self.page(data) for data in inputs]

    def inference(self, items):
        """The digits of each page."""
        return [{"crops": [crop(page, box) for box in boxes(page)]} for page in items]

    @staticmethod
    def page(data):
        """One input, decoded."""
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
    """Where the digits are: line by line, from left to right."""
    tones = np.asarray(page, dtype=np.int16)
    ink = np.abs(tones - np.median(tones)) > CONTRAST
    for top, bottom in runs(ink.any(axis=1)):
        for left, right in runs(ink[top:bottom].any(axis=0)):
            rows = np.flatnonzero(ink[top:bottom, left:right].any(axis=1))
            box = (left, top + rows[0], right, top + rows[-1] + 1)
            if max(box[2] - box[0], box[3] - box[1]) >= DUST_PX:
                yield tuple(map(int, box))


def runs(marks):
    """Begin and end of each run of marks."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2)


def crop(page, box):
    """One digit with a little of the paper around it, as a PNG."""
    left, top, right, bottom = box
    around = (left - MARGIN_PX, top - MARGIN_PX, right + MARGIN_PX, bottom + MARGIN_PX)
    # Beyond the page's edge there is paper, too.
    paper = int(np.median(np.asarray(page)))
    canvas = Image.new("L", (around[2] - around[0], around[3] - around[1]), paper)
    canvas.paste(page.crop(box), (MARGIN_PX, MARGIN_PX))
    file = io.BytesIO()
    canvas.save(file, "PNG")
    image = {"content_type": "image/png", "base64": base64.b64encode(file.getvalue()).decode()}
    return {"image": image, "box": list(box)}
