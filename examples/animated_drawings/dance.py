"""Lets a character wave and sway, as a GIF. In the models file: `handler: dance.py`.

Each pixel follows the bones that are near it; `bones.py` has the geometry. `options`: `frames`, and
`size_px` of the character's longer side.
"""

from __future__ import annotations

import io
import math

import numpy as np
import yaml
from bones import skeleton, skinned, weights
from PIL import Image

from headrace import Handler, Response

FRAME_MS = 60
#: Pixels of the character a pixel of the frame: with fewer, a stretched arm would have gaps.
FINE = 2
#: White around the figure, in pixels.
EDGE_PX = 8


class Dance(Handler):
    """Returns GIFs of characters that wave."""

    accepts_nested_bytes = True

    def initialize(self, context):
        """Read the options."""
        super().initialize(context)
        self.frames = int(context.options.get("frames", 24))
        self.size = int(context.options.get("size_px", 240))

    def inference(self, items):
        """Return a GIF for each character."""
        results = []
        for n, item in enumerate(items):
            self.context.progress(n, len(items), item=n)
            results.append(Response(self.gif(item), "image/gif"))
        return results

    def gif(self, character):
        """Return the bytes of one GIF."""
        config = yaml.safe_load(character["char_cfg"])
        scale = self.size / max(config["height"], config["width"])
        wide, high = (max(1, round(config[name] * scale)) for name in ("width", "height"))
        texture, mask = (
            np.asarray(
                Image.open(io.BytesIO(character[name]))
                .convert(mode)
                .resize((wide * FINE, high * FINE))
            )
            for name, mode in (("texture", "RGB"), ("mask", "L"))
        )
        rows, columns = np.nonzero(mask > 127)
        points = np.stack([columns, rows], 1).astype(np.float32) / FINE
        bones = skeleton(config, scale)
        near = weights(points, bones, mask[::FINE, ::FINE] > 127)
        margin = round(high * 0.35)
        width, height, shift = wide + 2 * margin, round(high * 1.3), (margin, round(high * 0.22))
        frames = []
        for n in range(self.frames):
            moved = skinned(points, near, bones, n / self.frames * 2 * math.pi) + shift
            x, y = np.rint(moved).astype(int).T
            inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            frame = np.zeros((height, width, 4), np.float32)
            frame[y[inside], x[inside], :3] = texture[rows[inside], columns[inside]]
            frame[y[inside], x[inside], 3] = 1
            frames.append(whole(frame))
        first, *others = map(Image.fromarray, trimmed(frames))
        file = io.BytesIO()
        first.save(file, "GIF", save_all=True, append_images=others, duration=FRAME_MS, loop=0)
        return file.getvalue()


def trimmed(frames):
    """Return the frames without what is white in all of them, besides an edge."""
    drawn = np.any([frame.min(2) < 255 for frame in frames], 0)
    (rows,), (columns,) = np.nonzero(drawn.any(1)), np.nonzero(drawn.any(0))
    if not len(rows):
        return frames
    top, left = max(0, rows[0] - EDGE_PX), max(0, columns[0] - EDGE_PX)
    return [
        frame[top : rows[-1] + EDGE_PX + 1, left : columns[-1] + EDGE_PX + 1] for frame in frames
    ]


def whole(frame):
    """Return a frame on white, with its gaps filled and its single dots gone."""
    high, wide, _ = frame.shape
    padded = np.pad(frame, ((1, 1), (1, 1), (0, 0)))
    around = sum(padded[y : y + high, x : x + wide] for y in range(3) for x in range(3))
    drawn, neighbours = frame[..., 3], around[..., 3]
    frame[(drawn == 0) & (neighbours < 5) | (neighbours < 3)] = 255
    gaps = (drawn == 0) & (neighbours >= 5)
    frame[gaps] = around[gaps] / around[gaps][:, 3:]
    return frame[..., :3].astype(np.uint8)
