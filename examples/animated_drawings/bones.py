"""The bones of a character, and how its points move with them (linear blend skinning).

Each point follows the bones that are near it. Near is measured inside the figure, so an arm that
hangs beside a skirt does not pull at it.
"""

from __future__ import annotations

import math

import numpy as np

#: How far, in degrees, and how often in a round each bone turns about its parent's end.
MOVES = {
    "torso": (4, 1), "neck": (6, 1), "right_elbow": (10, 2), "right_hand": (28, 2),
    "left_elbow": (12, 1), "left_hand": (8, 1), "right_knee": (3, 1), "left_knee": (3, 1),
}  # fmt: skip
#: Where a bone points before it turns, in degrees from straight down, outward.
RAISED = {"right_elbow": 125, "right_hand": 165}
#: The side of a cell in which distances inside the figure are measured, in pixels.
CELL_PX = 4
#: These bones move with their parents.
STIFF = {"root", "hip", "right_shoulder", "left_shoulder", "right_hip", "left_hip"}


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
