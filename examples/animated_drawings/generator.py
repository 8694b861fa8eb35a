"""Drawings of figures and things in many styles, with their boxes, masks and joints.

    python examples/animated_drawings/generator.py drawings/ --count 12

The same seed gives the same drawing. Lengths are in pixels; y points down.
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from networks import CLASSES, JOINTS
from PIL import Image, ImageDraw, ImageFilter

Point = tuple[float, float]
Colour = tuple[int, int, int]


@dataclass
class Thing:
    """Something on a drawing.

    Attributes:
        box: left, top, right, bottom.
        mask: 255 where the thing is, as large as the drawing.
        joints: an array of 16 points for a humanoid.
    """

    label: str
    mask: Image.Image
    box: tuple[int, int, int, int] = (0, 0, 0, 0)
    joints: np.ndarray | None = None


@dataclass
class Drawing:
    """An image with all that is drawn on it."""

    image: Image.Image
    things: list[Thing] = field(default_factory=list)


class Pen:
    """Draws on an image and on the mask of the present thing, with a hand that trembles."""

    def __init__(self, random: np.random.Generator, image: Image.Image) -> None:
        self.random = random
        self.image = image
        self.width = 3
        self.colour: Colour = (40, 40, 40)
        self.tremble = random.uniform(0.0, 0.02)
        self.begin()

    def begin(self) -> Image.Image:
        """Start a new thing, and return its mask."""
        self.mask = Image.new("L", self.image.size)
        self._layers = (ImageDraw.Draw(self.image), ImageDraw.Draw(self.mask))
        return self.mask

    def line(self, *points: Point, width: float = 0, colour: Colour | None = None) -> None:
        """Draw a line through the points."""
        width = max(1, round(width or self.width))
        path = self.shaken(points)
        for layer, fill in zip(self._layers, (colour or self.colour, 255), strict=True):
            layer.line(path, fill=fill, width=width, joint="curve")
            for x, y in (path[0], path[-1]):
                r = width / 2 - 0.5
                layer.ellipse((x - r, y - r, x + r, y + r), fill=fill)

    def shape(self, points: Sequence[Point], fill: Colour | None, *, outline: bool = True) -> None:
        """Draw a closed shape; the mask is filled, even if the shape is not."""
        path = self.shaken([*points, points[0]])
        image, mask = self._layers
        if fill is not None:
            image.polygon(path, fill=fill)
        mask.polygon(path, fill=255)
        if outline or fill is None:
            image.line(path, fill=self.colour, width=self.width, joint="curve")
            mask.line(path, fill=255, width=self.width, joint="curve")

    def shaken(self, points: Sequence[Point]) -> list[Point]:
        """Return the path with smooth deviations, as a hand makes them."""
        ends = np.asarray(points, float)
        steps = np.hypot(*np.diff(ends, axis=0).T)
        at = np.concatenate([[0], np.cumsum(steps)])
        count = int(np.clip(at[-1] / 8, 2, 60))
        where = np.unique(np.concatenate([at, np.linspace(0, at[-1], count)]))
        path = np.stack([np.interp(where, at, ends[:, axis]) for axis in (0, 1)], 1)
        knots = np.linspace(0, max(at[-1], 1), max(2, count // 3))
        for axis in (0, 1):
            noise = self.random.normal(0, self.tremble * min(at[-1], 120), len(knots))
            noise[[0, -1]] *= 0.3
            path[:, axis] += np.interp(where, knots, noise)
        return [(float(x), float(y)) for x, y in path]

    def chance(self, probability: float) -> bool:
        """Return true as often as the probability says."""
        return bool(self.random.random() < probability)

    def bright(self) -> Colour:
        """Return a colour of a crayon."""
        values = self.random.integers(60, 250, 3)
        return (int(values[0]), int(values[1]), int(values[2]))

    def dark(self) -> Colour:
        """Return a colour of a pencil or a pen."""
        if self.chance(0.6):
            grey = int(self.random.integers(0, 110))
            return (grey, grey, grey)
        values = self.random.integers(0, 150, 3)
        return (int(values[0]), int(values[1]), int(values[2]))


def drawing(seed: int | Sequence[int]) -> Drawing:
    """Return the drawing of a seed: one humanoid or two, and things around them."""
    random = np.random.default_rng(seed)
    width, height = (int(x) for x in random.integers(220, 420, 2))
    image = paper(random, width, height)
    pen = Pen(random, image)
    result = Drawing(image)
    boxes: list[tuple[float, float, float, float]] = []
    if pen.chance(0.3):
        pen.colour = pen.dark()
        y = height * random.uniform(0.75, 0.97)
        pen.line((0, y), (width, y + random.uniform(-15, 15)))
    figures = 2 if pen.chance(0.15) else 1
    plan = ["humanoid"] * figures
    plan += [str(x) for x in random.choice(CLASSES[1:], random.integers(0, 3))]
    for label in plan:
        share = random.uniform(0.35, 0.92 if len(plan) == 1 else 0.7)
        size = (
            share * height
            if label == "humanoid"
            else random.uniform(0.15, 0.45) * min(width, height)
        )
        for _ in range(20):
            wide = size * 0.75
            if wide >= width - 8 or size >= height - 8:
                size *= 0.85
                continue
            x, y = random.uniform(4, width - wide - 4), random.uniform(4, height - size - 4)
            spot = (x, y, x + wide, y + size)
            if all(overlap(spot, other) < 0.02 for other in boxes):
                boxes.append(spot)
                add(result, pen, label, spot)
                break
    scribbles(pen, boxes)
    result.image = photographed(random, image)
    return result


def add(result: Drawing, pen: Pen, label: str, spot: tuple[float, float, float, float]) -> None:
    """Draw a thing into its spot, and keep its labels."""
    thing = Thing(label, pen.begin())
    pen.colour = pen.dark()
    pen.width = int(pen.random.integers(2, 6))
    if label == "humanoid":
        thing.joints = figure(pen, spot)
    else:
        THINGS[label](pen, spot)
    thing.box = thing.mask.getbbox() or (0, 0, 1, 1)
    result.things.append(thing)


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the intersection of two boxes by their union."""
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    if wide <= 0 or high <= 0:
        return 0.0
    areas = sum((x[2] - x[0]) * (x[3] - x[1]) for x in (a, b))
    return wide * high / (areas - wide * high)


# ---- the figure


def skeleton(random: np.random.Generator, spot: tuple[float, float, float, float]) -> np.ndarray:
    """Return joints of a pose that fits into the spot."""
    torso, neck, head = (
        random.uniform(0.22, 0.36),
        random.uniform(0.0, 0.06),
        random.uniform(0.16, 0.36),
    )
    leg, arm = random.uniform(0.3, 0.46), random.uniform(0.26, 0.42)
    shoulder = random.choice([0.0, random.uniform(0.05, 0.15)])
    hip = random.choice([0.02, random.uniform(0.03, 0.1)])
    points = {"pelvis": np.zeros(2)}
    points["thorax"] = np.array([random.uniform(-0.02, 0.02), -torso])
    points["neck"] = points["thorax"] + (random.uniform(-0.01, 0.01), -neck)
    points["head_top"] = points["neck"] + (random.uniform(-0.03, 0.03), -head)
    alike = random.random() < 0.4
    for side, sign in (("right", -1), ("left", 1)):
        if side == "right" or not alike:
            raised = math.radians(random.choice([random.uniform(5, 60), random.uniform(60, 155)]))
            bent = math.radians(random.uniform(-35, 60)) * (random.random() < 0.7)
            spread = math.radians(random.uniform(0, 28))
            knee = math.radians(random.uniform(-18, 18)) * (random.random() < 0.6)
        points[f"{side}_shoulder"] = points["thorax"] + (sign * shoulder, random.uniform(0, 0.02))
        points[f"{side}_elbow"] = points[f"{side}_shoulder"] + bone(sign, raised, arm / 2)
        points[f"{side}_wrist"] = points[f"{side}_elbow"] + bone(sign, raised + bent, arm / 2)
        points[f"{side}_hip"] = np.array([sign * hip, 0.0])
        points[f"{side}_knee"] = points[f"{side}_hip"] + bone(sign, spread, leg / 2)
        points[f"{side}_ankle"] = points[f"{side}_knee"] + bone(sign, spread + knee, leg / 2)
    joints = np.stack([points[name] for name in JOINTS])
    lean = math.radians(random.normal(0, 5))
    joints @= np.array([[math.cos(lean), math.sin(lean)], [-math.sin(lean), math.cos(lean)]])
    left, top, right, bottom = spot
    low, high = joints.min(0), joints.max(0)
    scale = 0.86 * min(
        (right - left) / (high[0] - low[0] + 0.15), (bottom - top) / (high[1] - low[1])
    )
    return (joints - (low + high) / 2) * scale + ((left + right) / 2, (top + bottom) / 2)


def bone(sign: int, angle: float, length: float) -> np.ndarray:
    """Return the vector of a bone that points down at the angle 0, and outward at 90 degrees."""
    return np.array([sign * math.sin(angle), math.cos(angle)]) * length


def figure(pen: Pen, spot: tuple[float, float, float, float]) -> np.ndarray:
    """Draw a humanoid, and return its joints."""
    random = pen.random
    joints = skeleton(random, spot)
    at = dict(zip(JOINTS, joints, strict=True))
    size = float(np.linalg.norm(at["head_top"] - at["neck"])) / 2
    skin = pen.bright() if pen.chance(0.5) else None
    cloth = pen.bright() if pen.chance(0.6) else None
    limb: Callable[[Sequence[np.ndarray], float], None]
    thick = random.uniform(0.3, 0.75) * size
    style = random.choice(["stick", "stick", "thick", "capsule"])
    if style == "stick":
        limb = lambda path, _: pen.line(*map(tuple, path))  # noqa: E731
    elif style == "thick":
        colour = pen.bright() if pen.chance(0.5) else pen.colour
        limb = lambda path, _: pen.line(*map(tuple, path), width=thick, colour=colour)  # noqa: E731
    else:
        limb = lambda path, share: pen.shape(capsule(path, thick * share), skin)  # noqa: E731
    hands, feet = (
        random.choice(["none", "ball", "fingers"]),
        random.choice(["none", "oval", "line"]),
    )
    order = (
        ["legs", "arms", "body", "head"] if pen.chance(0.6) else ["body", "legs", "arms", "head"]
    )
    for part in order:
        if part == "legs":
            for side, sign in (("right", -1), ("left", 1)):
                ankle = at[f"{side}_ankle"]
                limb([at[f"{side}_hip"], at[f"{side}_knee"], ankle], 1)
                foot(pen, ankle, sign, size, feet, cloth)
        elif part == "arms":
            for side in ("right", "left"):
                elbow, wrist = at[f"{side}_elbow"], at[f"{side}_wrist"]
                limb([at[f"{side}_shoulder"], elbow, wrist], 0.8)
                hand(pen, wrist, wrist - elbow, size, hands, skin)
        elif part == "body":
            body(pen, at, style == "stick", size, cloth)
        else:
            head(pen, at, size, skin)
    return joints


def body(
    pen: Pen, at: dict[str, np.ndarray], thin: bool, size: float, cloth: Colour | None
) -> None:
    """Draw the torso: a line, an oval, a box, a dress or a blob."""
    top, bottom = at["thorax"], at["pelvis"]
    style = pen.random.choice(
        ["line", "line", "oval", "box", "dress"] if thin else ["oval", "box", "dress", "blob"]
    )
    along = bottom - top
    across = np.array([-along[1], along[0]]) / max(np.linalg.norm(along), 1)
    wide = max(
        abs(at["left_shoulder"][0] - at["right_shoulder"][0]) / 2,
        abs(at["left_hip"][0] - at["right_hip"][0]) / 2,
        size * pen.random.uniform(0.4, 0.9),
    )
    if style == "line":
        pen.line(tuple(top), tuple(bottom))
        for side in ("shoulder", "hip"):
            pen.line(tuple(at[f"right_{side}"]), tuple(at[f"left_{side}"]))
        return
    if style in {"oval", "blob"}:
        angles = np.linspace(0, 2 * math.pi, 24, endpoint=False)
        bumps = 1 + (pen.random.normal(0, 0.06, 24) if style == "blob" else 0)
        middle = (top + bottom) / 2
        points = [
            middle + along * (0.58 * math.cos(a) * b) + across * (wide * math.sin(a) * b)
            for a, b in zip(angles, np.broadcast_to(bumps, 24), strict=True)
        ]
    else:
        low = wide * (pen.random.uniform(1.3, 2.2) if style == "dress" else 1)
        high = wide * (0.5 if style == "dress" else 1)
        end = bottom + along * (pen.random.uniform(0.1, 0.5) if style == "dress" else 0.05)
        points = [top - across * high, top + across * high, end + across * low, end - across * low]
    pen.shape([tuple(p) for p in points], cloth)
    if cloth and pen.chance(0.3):
        for share in (0.25, 0.5, 0.75):
            centre = top + along * share
            pen.line(tuple(centre - across * wide * 0.6), tuple(centre + across * wide * 0.6))


def head(pen: Pen, at: dict[str, np.ndarray], size: float, skin: Colour | None) -> None:
    """Draw the head with a face, and perhaps hair or a hat."""
    random = pen.random
    centre = (at["neck"] + at["head_top"]) / 2
    x, y = centre
    wide = size * random.uniform(0.8, 1.15)
    if pen.chance(0.4):
        hair(pen, centre, size, wide)
    corners = 4 if pen.chance(0.08) else 22
    turn = math.pi / 4 if corners == 4 else 0
    angles = np.linspace(0, 2 * math.pi, corners, endpoint=False) + turn
    pen.shape([(x + wide * math.cos(a), y + size * math.sin(a)) for a in angles], skin)
    if pen.chance(0.92):
        apart, up = wide * random.uniform(0.25, 0.45), size * random.uniform(0.05, 0.3)
        r = max(1.5, size * random.uniform(0.06, 0.16))
        for sign in (-1, 1):
            ring((x + sign * apart, y - up), r, pen, pen.colour if pen.chance(0.7) else None)
        smile, low = wide * random.uniform(0.25, 0.5), size * random.uniform(0.3, 0.5)
        bend = size * random.uniform(-0.1, 0.3)
        mouth = [(x + smile * t, y + low + bend * (1 - t * t)) for t in np.linspace(-1, 1, 7)]
        pen.line(*mouth, width=max(1, pen.width - 1))
        if pen.chance(0.3):
            pen.line((x, y), (x + size * 0.1, y + size * 0.15), width=max(1, pen.width - 1))
    if pen.chance(0.15):
        brim = y - size * 0.8
        tip = brim - size * random.uniform(0.6, 1.1)
        top = wide * random.choice([0.05, 0.6])
        pen.shape(
            [(x - wide, brim), (x + wide, brim), (x + top, tip), (x - top, tip)], pen.bright()
        )


def hair(pen: Pen, centre: np.ndarray, size: float, wide: float) -> None:
    """Draw hair: single hairs, a mop or long hair."""
    x, y = centre
    style = pen.random.choice(["single", "mop", "long"])
    colour = pen.bright()
    if style == "single":
        for a in np.linspace(-math.pi * 0.9, -math.pi * 0.1, int(pen.random.integers(4, 12))):
            out = pen.random.uniform(1.15, 1.4)
            root, end = (
                (x + wide * math.cos(a), y + size * math.sin(a)),
                (x + wide * out * math.cos(a), y + size * out * math.sin(a)),
            )
            pen.line(root, end, colour=colour)
        return
    low = 0.0 if style == "mop" else pen.random.uniform(0.6, 1.3)
    angles = np.linspace(-math.pi, 0, 12)
    cap = [(x + wide * 1.25 * math.cos(a), y + size * 1.2 * math.sin(a)) for a in angles]
    pen.shape([*cap, (x + wide * 1.25, y + size * low), (x - wide * 1.25, y + size * low)], colour)


def hand(
    pen: Pen, wrist: np.ndarray, along: np.ndarray, size: float, style: str, skin: Colour | None
) -> None:
    """Draw a hand at the wrist."""
    if style == "ball":
        ring(tuple(wrist), size * 0.28, pen, skin)
    elif style == "fingers":
        angle, length = math.atan2(along[1], along[0]), size * 0.45
        for turn in np.linspace(-0.7, 0.7, int(pen.random.integers(3, 6))):
            end = wrist + length * np.array([math.cos(angle + turn), math.sin(angle + turn)])
            pen.line(tuple(wrist), tuple(end))


def foot(
    pen: Pen, ankle: np.ndarray, sign: int, size: float, style: str, cloth: Colour | None
) -> None:
    """Draw a foot at the ankle, which points outward."""
    if style == "line":
        pen.line(tuple(ankle), (ankle[0] + sign * size * 0.5, ankle[1]))
    elif style == "oval":
        angles = np.linspace(0, 2 * math.pi, 14, endpoint=False)
        x, y = ankle[0] + sign * size * 0.25, ankle[1]
        pen.shape(
            [(x + size * 0.42 * math.cos(a), y + size * 0.2 * math.sin(a)) for a in angles], cloth
        )


def capsule(path: Sequence[np.ndarray], width: float) -> list[Point]:
    """Return the outline of a limb along three joints."""
    start, middle, end = path
    first, second = end_normal(start, middle), end_normal(middle, end)
    half, mean = width / 2, (first + second) / max(float(np.linalg.norm(first + second)), 0.5)
    tip = (end - middle) / max(float(np.linalg.norm(end - middle)), 1) * half
    sides = [start + first * half, middle + mean * half, end + second * half * 0.8, end + tip]
    back = [end - second * half * 0.8, middle - mean * half, start - first * half]
    return [(float(x), float(y)) for x, y in (*sides, *back)]


def end_normal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the unit normal of the line from a to b."""
    along = b - a
    return np.array([-along[1], along[0]]) / max(float(np.linalg.norm(along)), 1e-6)


def ring(centre: Point, radius: float, pen: Pen, fill: Colour | None) -> None:
    """Draw a circle."""
    angles = np.linspace(0, 2 * math.pi, 12, endpoint=False)
    pen.shape(
        [(centre[0] + radius * math.cos(a), centre[1] + radius * math.sin(a)) for a in angles], fill
    )


# ---- things


def house(pen: Pen, spot: tuple[float, float, float, float]) -> None:
    """Draw a house with a roof, a door and windows."""
    left, top, right, bottom = spot
    eaves = top + (bottom - top) * pen.random.uniform(0.3, 0.5)
    wall, roof = (pen.bright() if pen.chance(0.5) else None for _ in range(2))
    pen.shape([(left, eaves), (right, eaves), (right, bottom), (left, bottom)], wall)
    pen.shape([(left - 2, eaves), ((left + right) / 2, top), (right + 2, eaves)], roof)
    wide = (right - left) * 0.22
    x = left + (right - left) * pen.random.uniform(0.15, 0.6)
    pen.shape(
        [
            (x, bottom),
            (x, bottom - wide * 1.6),
            (x + wide, bottom - wide * 1.6),
            (x + wide, bottom),
        ],
        None,
    )


def tree(pen: Pen, spot: tuple[float, float, float, float]) -> None:
    """Draw a tree: a trunk and a crown of one round, or of triangles."""
    left, top, right, bottom = spot
    x, wide, high = (left + right) / 2, right - left, bottom - top
    trunk = wide * pen.random.uniform(0.06, 0.12)
    split = top + high * 0.6
    pen.shape(
        [(x - trunk, split), (x + trunk, split), (x + trunk, bottom), (x - trunk, bottom)],
        pen.bright(),
    )
    leaves = pen.bright() if pen.chance(0.6) else None
    if pen.chance(0.5):
        angles = np.linspace(0, 2 * math.pi, 30, endpoint=False)
        bumps = 1 + 0.12 * np.sin(angles * pen.random.integers(5, 9))
        centre = (top + split) / 2
        pen.shape(
            [
                (x + wide * 0.45 * b * math.cos(a), centre + (split - top) * 0.5 * b * math.sin(a))
                for a, b in zip(angles, bumps, strict=True)
            ],
            leaves,
        )
    else:
        for share in (0.0, 0.25):
            up, low = top + high * share, top + high * (share + 0.4)
            half = wide * (0.35 + share / 2)
            pen.shape([(x, up), (x + half, low), (x - half, low)], leaves)


def sun(pen: Pen, spot: tuple[float, float, float, float]) -> None:
    """Draw a sun with rays, sometimes with a face."""
    left, top, right, bottom = spot
    centre, radius = (
        ((left + right) / 2, (top + bottom) / 2),
        min(right - left, bottom - top) * 0.25,
    )
    pen.colour = pen.bright() if pen.chance(0.5) else pen.colour
    ring(centre, radius, pen, pen.bright() if pen.chance(0.5) else None)
    for a in np.linspace(0, 2 * math.pi, int(pen.random.integers(6, 14)), endpoint=False):
        near, far = radius * 1.2, radius * pen.random.uniform(1.5, 2)
        pen.line(
            (centre[0] + near * math.cos(a), centre[1] + near * math.sin(a)),
            (centre[0] + far * math.cos(a), centre[1] + far * math.sin(a)),
        )


THINGS = {"house": house, "tree": tree, "sun": sun}


def scribbles(pen: Pen, boxes: list[tuple[float, float, float, float]]) -> None:
    """Draw marks without a label: grass, clouds, letters, dots."""
    pen.begin()
    for _ in range(int(pen.random.integers(0, 5))):
        size = pen.random.uniform(6, 26)
        x = pen.random.uniform(0, pen.image.width - size)
        y = pen.random.uniform(0, pen.image.height - size)
        if any(overlap((x, y, x + size, y + size), box) > 0 for box in boxes):
            continue
        pen.colour, pen.width = pen.dark(), int(pen.random.integers(1, 4))
        points = [
            (x + size * a, y + size * b)
            for a, b in pen.random.random((int(pen.random.integers(2, 6)), 2))
        ]
        pen.line(*points)


# ---- paper and camera


def paper(random: np.random.Generator, width: int, height: int) -> Image.Image:
    """Return an empty sheet: white, tinted, ruled or squared."""
    tint = random.integers(215, 256) - random.integers(0, 25, 3) * (random.random() < 0.5)
    image = Image.new("RGB", (width, height), tuple(int(x) for x in tint))
    if random.random() < 0.15:
        draw, gap = ImageDraw.Draw(image), int(random.integers(14, 30))
        rule = tuple(int(x) - 35 for x in tint)
        for y in range(gap, height, gap):
            draw.line((0, y, width, y), fill=rule)
        if random.random() < 0.5:
            for x in range(gap, width, gap):
                draw.line((x, 0, x, height), fill=rule)
    return image


def photographed(random: np.random.Generator, image: Image.Image) -> Image.Image:
    """Return the drawing as a scanner or a camera sees it: blur, shadow, noise, JPEG."""
    if random.random() < 0.6:
        image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.3, 1.1)))
    values = np.asarray(image, np.float32)
    if random.random() < 0.1:
        values = 255 - values  # chalk on a board
    corners = Image.fromarray(random.uniform(0.72, 1.0, (2, 2)).astype(np.float32))
    if random.random() < 0.5:
        values = (
            values * np.asarray(corners.resize(image.size, Image.Resampling.BILINEAR))[..., None]
        )
    values += random.normal(0, random.uniform(0, 7), values.shape)
    image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    if random.random() < 0.4:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=int(random.integers(45, 95)))
        image = Image.open(file).convert("RGB")
    return image


def main() -> None:
    """Write drawings as PNG files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for number in range(arguments.count):
        drawing([arguments.seed, number]).image.save(arguments.folder / f"{number:04}.png")


if __name__ == "__main__":
    main()
