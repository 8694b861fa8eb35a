"""Charts as inline SVG: lines and points, stacked bars, columns. Colours are classes of the page.

A chart is `WIDTH` units wide and grows with its column of the page. Its text stays readable in a
column of 320 pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.etree.ElementTree import Element

from headrace.pages.elements import Child, element, number, shorter

WIDTH: Final = 480
HEIGHT: Final = 300
#: How many colours a page has.
COLOURS: Final = 8
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 22, 26, 46
#: Widths of a character and a line, in units.
_CHARACTER, _LINE = 7.2, 15.0
#: An axis is logarithmic from this ratio of its largest to its smallest value.
_LOG_FROM: Final = 40.0
_LEAST: Final = 1e-12
#: A logarithmic axis ends at this part of its largest value.
_LOG_MAX: Final = 1e7
_BAR: Final = 20


@dataclass(frozen=True)
class Point:
    """A point, with an interval of its y and a label."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    hollow: bool = False


@dataclass(frozen=True)
class Series:
    """A line through points.

    Attributes:
        colour: its number; numbers from `COLOURS` on begin again.
        dots: the points are shown, with intervals and labels; the line leaves out hollow ones.
    """

    name: str
    points: Sequence[Point]
    colour: int = 0
    dots: bool = False


@dataclass(frozen=True)
class Limit:
    """A vertical line at a value of x, such as an objective."""

    x: float
    label: str


@dataclass(frozen=True)
class Bar:
    """A bar of parts that are stacked from left to right, with an interval of its length."""

    name: str
    parts: Sequence[float]
    low: float | None = None
    high: float | None = None


@dataclass
class Axis:
    """An axis: it maps values to units of the chart.

    Attributes:
        name: what it measures, and the unit.
        low, high: the values at `start` and `end`.
    """

    name: str
    low: float
    high: float
    start: float
    end: float
    log: bool = False
    ticks: list[float] = field(default_factory=list)

    def at(self, value: float) -> float:
        """Return the place of a value; what is outside of the axis is moved to its ends."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def axis(
    name: str, values: Sequence[float], start: float, end: float, *, log: bool = False
) -> Axis:
    """Return an axis that has room for these values. It begins at 0 unless it is logarithmic.

    Args:
        name: what it measures.
        values: the values.
        start: the place of its smallest value.
        end: the place of its largest value.
        log: it may be logarithmic, and is so if the values are far apart.
    """
    known = [value for value in values if math.isfinite(value)]
    most = max(known, default=1.0)
    # Nothing that a chart shows is smaller, and steps of less have no exact numbers.
    most = most if most > _LEAST else 1.0
    above = [value for value in known if value > 0]
    if log and above and most / min(above) >= _LOG_FROM:
        least = max(min(above), most / _LOG_MAX)
        powers = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
        steps = [factor * 10.0**n for n in powers for factor in (1, 2, 5)]
        low = max(step for step in steps if step <= least)
        high = min(step for step in steps if step >= most)
        ticks = [step for step in steps if low <= step <= high]
        if len(ticks) > 7:
            ticks = [step for step in ticks if f"{step:e}".startswith("1.")]
        return Axis(name, low, high, start, end, True, ticks)
    step = _step(most / 5)
    count = math.ceil(most / step - 1e-9)
    return Axis(name, 0.0, count * step, start, end, False, [n * step for n in range(count + 1)])


def _step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)


def line_chart(
    title: str,
    series: Sequence[Series],
    x: str,
    y: str,
    *,
    limits: Sequence[Limit] = (),
    most_y: float | None = None,
    log_x: bool = True,
) -> Element:
    """Return a chart of lines, or of points.

    Args:
        title: what it shows, for readers that do not see it.
        series: the lines.
        x: what the horizontal axis measures.
        y: what the vertical axis measures.
        limits: vertical lines.
        most_y: the largest value of y; by default that of the points.
        log_x: the horizontal axis is logarithmic if its values are far apart.
    """
    points = [point for one in series for point in one.points]
    across = axis(
        x,
        [*(point.x for point in points), *(limit.x for limit in limits)],
        _LEFT,
        WIDTH - _RIGHT,
        log=log_x,
    )
    highs = [point.y if point.high is None else point.high for point in points]
    up = axis(y, highs if most_y is None else [most_y], HEIGHT - _BOTTOM, _TOP)
    taken: list[tuple[float, float, float, float]] = []
    parts: list[Child] = [_grid(across, up)]
    parts += [_limit(one, across, taken) for one in limits]
    parts += [_line(one, across, up) for one in series]
    # Labels come last, as each avoids all points.
    taken += [
        (at_x - 4, at_y - 4, at_x + 4, at_y + 4)
        for one in series
        if one.dots
        for point in one.points
        for at_x, at_y in [(across.at(point.x), up.at(point.y))]
    ]
    parts += [_labels(one, across, up, taken) for one in series if one.dots]
    return _svg(title, HEIGHT, parts)


def _svg(title: str, height: float, parts: Sequence[Child]) -> Element:
    return element(
        "svg",
        element("title", title),
        *parts,
        role="img",
        viewBox=f"0 0 {WIDTH} {height:g}",
        class_="chart",
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", **others: str) -> Element:
    return element("text", text, x=x, y=y, text_anchor=anchor, **others)


def _grid(across: Axis, up: Axis) -> list[Element]:
    lines, bottom = [], HEIGHT - _BOTTOM
    for tick in up.ticks:
        at = up.at(tick)
        lines.append(element("line", class_="grid", x1=_LEFT, x2=WIDTH - _RIGHT, y1=at, y2=at))
        lines.append(_text(_LEFT - 6, at + 4, _tick(tick), "end"))
    for tick in across.ticks:
        at = across.at(tick)
        lines.append(element("line", class_="tick", x1=at, x2=at, y1=bottom, y2=bottom + 4))
        lines.append(_text(at, bottom + 17, _tick(tick)))
    lines.append(element("line", class_="axis", x1=_LEFT, x2=WIDTH - _RIGHT, y1=bottom, y2=bottom))
    lines.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, across.name, class_="name"))
    middle = (_TOP + bottom) / 2
    lines.append(_text(13, middle, up.name, class_="name", transform=f"rotate(-90 13 {middle:g})"))
    return lines


def _tick(value: float) -> str:
    if value >= 10_000:
        return f"{number(value / 1000)}k"
    return number(value)


def _limit(
    limit: Limit, across: Axis, taken: list[tuple[float, float, float, float]]
) -> list[Element]:
    at, bottom = across.at(limit.x), HEIGHT - _BOTTOM
    width = len(limit.label) * _CHARACTER
    right = at + 5 + width <= WIDTH
    left, top = (at + 5 if right else at - 5 - width), 2.0
    while any(_overlap((left, top, left + width, top + _LINE), other) for other in taken):
        top += _LINE
    taken.append((left, top, left + width, top + _LINE))
    return [
        element("line", class_="limit", x1=at, x2=at, y1=4, y2=bottom),
        _text(left, top + 11, limit.label, "start", class_="limit"),
    ]


def _line(series: Series, across: Axis, up: Axis) -> list[Element]:
    colour = f"c{series.colour % COLOURS}"
    joined = [point for point in series.points if not point.hollow]
    places = [(across.at(point.x), up.at(point.y)) for point in joined]
    made = []
    if len(places) > 1:
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        made.append(element("path", element("title", series.name), d=path, class_=f"line {colour}"))
    elif not series.dots:
        made += [element("circle", cx=x, cy=y, r=3, class_=f"dot {colour}") for x, y in places]
    return made


def _labels(
    series: Series, across: Axis, up: Axis, taken: list[tuple[float, float, float, float]]
) -> list[Element]:
    colour, made = f"c{series.colour % COLOURS}", []
    for point in series.points:
        x, y = across.at(point.x), up.at(point.y)
        if point.low is not None and point.high is not None:
            low, high = up.at(point.low), up.at(point.high)
            made.append(element("line", class_=f"interval {colour}", x1=x, x2=x, y1=low, y2=high))
        kind = "hollow" if point.hollow else "dot"
        about = f"{series.name} {point.label}: {number(point.x)}, {number(point.y)}"
        made.append(
            element("circle", element("title", about), cx=x, cy=y, r=4, class_=f"{kind} {colour}")
        )
        made += _label(shorter(point.label, 18), x, y, taken)
    return made


def _label(
    text: str, x: float, y: float, taken: list[tuple[float, float, float, float]]
) -> list[Element]:
    """Return a label next to a point where it covers no other one; nothing without such a place."""
    width = len(text) * _CHARACTER
    if not text:
        return []
    for left, top in (
        (x + 8, y - _LINE / 2),
        (x - 8 - width, y - _LINE / 2),
        (x - width / 2, y - _LINE - 6),
        (x - width / 2, y + 8),
    ):
        box = (left, top, left + width, top + _LINE)
        inside = left >= _LEFT and box[2] <= WIDTH and top >= 0 and box[3] <= HEIGHT - _BOTTOM
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            return [_text(left, top + 11, text, "start", class_="label")]
    return []


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def bar_chart(title: str, bars: Sequence[Bar], parts: Sequence[str], x: str) -> Element:
    """Return a chart of horizontal bars, each with the name above it and its sum behind it.

    Args:
        title: what it shows.
        bars: the bars; each has a value for each of `parts`.
        parts: what the parts are; each has its colour.
        x: what the length of a bar measures.
    """
    sums = [sum(bar.parts) for bar in bars]
    ends = [max(total, bar.high or 0.0) for bar, total in zip(bars, sums, strict=True)]
    across = axis(x, ends or [1.0], 8, WIDTH - 64)
    row = _BAR + _LINE + 10
    made: list[Child] = []
    for n, (bar, total, end) in enumerate(zip(bars, sums, ends, strict=True)):
        top, at = n * row + 4, 0.0
        made.append(_text(8, top + 11, shorter(bar.name, 68), "start"))
        for colour, value in enumerate(bar.parts):
            left, right = across.at(at), across.at(at + value)
            at += value
            if right - left > 0:
                about = element("title", f"{parts[colour]}: {number(value)}")
                made.append(
                    element(
                        "rect", about, x=left, y=top + 16, width=right - left, height=_BAR,
                        class_=f"part c{colour % COLOURS}",
                    )
                )  # fmt: skip
        if bar.low is not None and bar.high is not None:
            low, high, middle = across.at(bar.low), across.at(bar.high), top + 16 + _BAR / 2
            made.append(
                element("line", class_="interval of-bar", x1=low, x2=high, y1=middle, y2=middle)
            )
        made.append(_text(across.at(end) + 6, top + 31, number(total), "start", class_="label"))
    bottom = len(bars) * row + 6
    made += [_text(across.at(tick), bottom + 10, _tick(tick)) for tick in across.ticks]
    made.append(_text((8 + WIDTH - 64) / 2, bottom + 30, x, class_="name"))
    return _svg(title, bottom + 38, made)


def column_chart(title: str, columns: Sequence[tuple[str, float]], x: str, y: str) -> Element:
    """Return a chart of columns, each with a name below it.

    Args:
        title: what it shows.
        columns: names and values; where names would overlap, some are left out.
        x: what the names are.
        y: what the values measure.
    """
    up = axis(y, [value for _, value in columns], HEIGHT - _BOTTOM, _TOP)
    across = Axis(x, 0.0, max(1.0, float(len(columns))), _LEFT, WIDTH - _RIGHT)
    made: list[Child] = [_grid(across, up)]
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(columns))
    longest = max((len(name) for name, _ in columns), default=1) * _CHARACTER + 6
    every = max(1, math.ceil(longest / step))
    for n, (name, value) in enumerate(columns):
        left, top = across.at(n), up.at(value)
        wide = min(step * 0.8, 48.0)
        about = element("title", f"{name}: {number(value)}")
        made.append(
            element(
                "rect", about, x=left + (step - wide) / 2, y=top, width=wide,
                height=HEIGHT - _BOTTOM - top, class_="part c0",
            )
        )  # fmt: skip
        if n % every == 0:
            made.append(_text(left + step / 2, HEIGHT - _BOTTOM + 17, name))
    return _svg(title, HEIGHT, made)
