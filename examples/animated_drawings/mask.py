"""Says which pixels of a crop are the figure. In the models file: `handler: mask.py`.

The input is what `crop.py` returns. The detector's mask is coarse, so ink that touches it is
added. The result is a PNG: 255 where the figure is.
"""

from __future__ import annotations

import io

import numpy as np
from images import png
from PIL import Image, ImageFilter

from headrace import Handler, Response

#: How much darker or lighter than the paper around it ink is, of 255 tones.
CONTRAST = 40


class CutOut(Handler):
    """Returns masks as exact as the lines of the drawing."""

    accepts_nested_bytes = True

    def inference(self, items):
        """Return a mask for each crop."""
        return [Response(png(mask(item)), "image/png") for item in items]


def mask(crop):
    """Return the mask of one crop, as a grey image."""
    with Image.open(io.BytesIO(crop["image"])) as opened:
        grey = opened.convert("L")
    with Image.open(io.BytesIO(crop["mask"])) as opened:
        coarse = opened.convert("L")
    x0, y0, x1, y1 = crop["view"]
    across, down = coarse.width / (x1 - x0), coarse.height / (y1 - y0)
    fitted = coarse.transform(
        grey.size,
        Image.Transform.AFFINE,
        (across, 0, -x0 * across, 0, down, -y0 * down),
        Image.Resampling.BILINEAR,
    )
    figure = np.asarray(fitted) > 127
    # A line of the figure may be a little outside of the coarse mask: as far as one of its pixels.
    reach = 2 * round(max(1, 1 / across)) + 1
    near = np.asarray(Image.fromarray(figure).convert("L").filter(ImageFilter.MaxFilter(reach))) > 0
    paper = np.asarray(grey.filter(ImageFilter.GaussianBlur(max(grey.size) / 12)), np.int16)
    ink = np.abs(np.asarray(grey, np.int16) - paper) > CONTRAST
    return Image.fromarray(((figure | (near & ink)) * 255).astype(np.uint8))
