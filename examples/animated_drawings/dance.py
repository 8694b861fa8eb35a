"""Lets a character wave and sway, as a GIF. In the models file: `handler: dance.py`.

Each pixel follows the bones that are near it (linear blend skinning). Near is measured inside
the figure, so an arm that hangs beside a skirt does not pull at it. `options`: `frames`, and
`size_px` of the character's longer side.
"""

from __future__ import annotations

import io
import math

import numpy as np
import yaml
from PIL import Image

from headrace import Handler, Response

#: How far, in degrees, and how often in a round each bone turns about its parent's end.
MOVES = {
    "torso": (4, 1), "neck": (6, 1), "right_elbow": (10, 2), "right_hand": (28, 2),
    "left_elbow": (12, 1), "left_hand": (8, 1), "right_knee": (3, 1), "left_knee": (3, 1),
}  # fmt: skip
#: Where a bone points before it turns, in degrees from straight down, outward.
RAISED = {"right_elbow": 125, "right_hand": 165}
FRAME_MS = 60
#: Pixels of the character a pixel of the frame: with fewer, a stretched arm would have gaps.
FINE = 2
#: The side of a cell in which distances inside the figure are measured, in pixels.
CELL_PX = 4
#: These bones move with their parents.
STIFF = {"root", "hip", "right_shoulder", "left_shoulder", "right_hip", "left_hip"}


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
            frames.append(Image.fromarray(whole(frame)))
        file = io.BytesIO()
        frames[0].save(
            file, "GIF", save_all=True, append_images=frames[1:], duration=FRAME_MS, loop=0
        )
        return file.getvalue()


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


def skeleton(config, scale):
    """Return the bones in the order of parents: name, parent, start and end."""
    at = {joint["name"]: np.array(joint["loc"], float) * scale for joint in config["skeleton"]}
    return [
        (joint["name"], joint["parent"], at[joint["parent"] or joint["name"]], at[joint["name"]])
        for joint in config["skeleton"]
    ]


def weights(points, bones, mask):
    """Return how much of each point each bone moves: points x bones, with the sum 1."""
    high, wide = (-(-size // CELL_PX) for size in mask.shape)
    padded = np.pad(
        mask, ((0, high * CELL_PX - mask.shape[0]), (0, wide * CELL_PX - mask.shape[1]))
    )
    cells = padded.reshape(high, CELL_PX, wide, CELL_PX).any(axis=(1, 3))
    row, column = np.minimum(points[:, ::-1] // CELL_PX, [high - 1, wide - 1]).astype(int).T
    middles = (np.indices(cells.shape)[::-1].reshape(2, -1).T + 0.5) * CELL_PX
    closeness = np.zeros((len(points), len(bones)), np.float32)
    for n, (name, _, start, end) in enumerate(bones):
        if name not in STIFF:
            straight = away(middles, start, end).reshape(cells.shape)
            first = cells & (straight <= straight[cells].min() + CELL_PX)
            inside = np.maximum(
                away(points, start, end), steps(first, cells)[row, column] * CELL_PX
            )
            closeness[:, n] = 1 / (inside + 1) ** 6
    return closeness / closeness.sum(1, keepdims=True)


def away(points, start, end):
    """Return how far points are from a bone."""
    along = end - start
    share = np.clip((points - start) @ along / max(along @ along, 1e-6), 0, 1)
    return np.linalg.norm(points - start - share[:, None] * along, axis=1)


def steps(first, cells):
    """Return how many steps inside the figure each cell is from the first ones."""
    result = np.full(cells.shape, float(sum(cells.shape)))
    reached, count = first, 0
    while True:
        result[reached & (result > count)] = count
        wider = np.pad(reached, 1)
        wider = wider[:, 1:-1] | wider[:, :-2] | wider[:, 2:]
        wider = (wider[1:-1] | wider[:-2] | wider[2:]) & cells
        if (wider == reached).all():
            return result
        reached, count = wider, count + 1


def skinned(points, near, bones, phase):
    """Return where the points are at a phase of the dance."""
    moves = {}
    result = np.zeros_like(points)
    for column, (name, parent, start, end) in enumerate(bones):
        turn, place = moves[parent] if parent else (np.eye(2), np.zeros(2))
        far, often = MOVES.get(name, (0, 0))
        angle = math.radians(far * math.sin(phase * often))
        if name in RAISED:
            x, y = turn @ (end - start)
            # Right is the left of the drawing: outward is to smaller x.
            now = math.atan2(-x, y)
            angle += math.remainder(math.radians(RAISED[name]) - now, 2 * math.pi)
        rotation = np.array(
            [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        )
        after = rotation @ turn
        pivot = turn @ start + place
        moves[name] = (after, pivot - after @ start)
        if name not in STIFF:
            place = points @ after.T.astype(np.float32) + moves[name][1].astype(np.float32)
            result += near[:, column, None] * place
    bob = abs(math.sin(phase)) * -0.03 * np.ptp(points[:, 1])
    return result + np.array([0, bob])
