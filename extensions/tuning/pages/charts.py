"""Charts that matplotlib draws as inline SVG, in the colours of the page.

A chart is `WIDTH` units wide and grows with its column of the page. Its text stays readable in a
column of 320 pixels. matplotlib is imported for the first chart.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any, Final
from xml.etree.ElementTree import Element, fromstring

from extensions.tuning.pages.elements import clean
from headrace.text import number, shorter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH: Final = 480
HEIGHT: Final = 300
#: How many colours a page has.
COLOURS: Final = 8
#: What a page has in place of its charts.
MISSING: Final = "The charts need matplotlib: pip install 'headrace[bench]'."

#: matplotlib draws in these colours, and the page has a variable for each.
_INK, _SOFT, _GRID, _LIMIT, _PAPER = "#010101", "#020202", "#030303", "#040404", "#050505"
_SERIES: Final = tuple(f"#0600{n:02x}" for n in range(COLOURS))
_VARIABLES: Final = {
    _INK: "ink", _SOFT: "soft", _GRID: "line", _LIMIT: "limit", _PAPER: "paper",
    **{colour: f"c{n}" for n, colour in enumerate(_SERIES)},
}  # fmt: skip
#: Lines differ by more than their colour.
_DASHES: Final[Sequence[Any]] = ("-", (0, (7, 3)), (0, (2, 3)), (0, (10, 3, 2, 3)))
_STYLE: Final[Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "headrace", "text.parse_math": False,
    "font.family": "sans-serif", "font.size": 12, "text.color": _INK, "axes.labelcolor": _INK,
    "axes.edgecolor": _SOFT, "xtick.color": _SOFT, "ytick.color": _SOFT, "grid.color": _GRID,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.axisbelow": True, "ytick.left": False, "axes.unicode_minus": False,
}  # fmt: skip
#: An axis is logarithmic from this ratio of its largest to its smallest value, and ends at the
#: second part of its largest one.
_LOG_FROM: Final = 40.0
_LOG_MAX: Final = 1e7
#: The height of a bar with its name, and of what is below the bars.
_BAR, _BELOW_BARS = 46, 60
_CHARACTER, _LINE = 7.0, 14.0
#: matplotlib writes points, of which an inch has 72.
_DPI: Final = 72
_STEPS: Final = (1, 2, 2.5, 5, 10)
_NO_METADATA: Final = {"Date": None, "Creator": None, "Format": None, "Type": None}


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
    """A bar of parts, each a colour and a value, with an interval of its length."""

    name: str
    parts: Sequence[tuple[int, float]]
    low: float | None = None
    high: float | None = None


def missing() -> str:
    """Return the text in place of charts; "" if they can be drawn."""
    return "" if find_spec("matplotlib") else MISSING


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
        x: what the horizontal axis measures.
        y: what the vertical axis measures.
        most_y: the largest value of y; by default that of the points.
        log_x: the horizontal axis is logarithmic if its values are far apart.
    """
    points = [point for line in series for point in line.points]
    with _drawing(HEIGHT, x, y) as (figure, axes):
        _set_x(axes, [*(point.x for point in points), *(limit.x for limit in limits)], log=log_x)
        _set_y(axes, [point.high or point.y for point in points] if most_y is None else [most_y])
        for row, limit in enumerate(limits):
            _draw_limit(axes, limit, row)
        for line in series:
            shown = [point for point in line.points if math.isfinite(point.x + point.y)]
            _draw_line(axes, line, shown)
        figure.draw_without_rendering()
        _draw_labels(axes, [point for line in series if line.dots for point in line.points])
        return _inline(title, figure)


def bar_chart(title: str, bars: Sequence[Bar], x: str) -> Element:
    """Return a chart of horizontal bars, each with the name above it and its sum behind it."""
    with _drawing(len(bars) * _BAR + _BELOW_BARS, x, "") as (figure, axes):
        ends = [max(sum(value for _, value in bar.parts), bar.high or 0.0) for bar in bars]
        _set_x(axes, [1.15 * end for end in ends], log=False)
        axes.set_ylim(len(bars) - 0.5, -0.6)
        axes.set_yticks([])
        for row, (bar, end) in enumerate(zip(bars, ends, strict=True)):
            left = 0.0
            for colour, value in bar.parts:
                axes.barh(row, value, 0.42, left, color=_SERIES[colour % COLOURS])
                left += value
            if bar.low is not None and bar.high is not None:
                axes.hlines(row, bar.low, bar.high, color=_INK, linewidth=1.5)
            axes.text(0, row - 0.28, clean(shorter(bar.name, 60)), color=_SOFT)
            axes.annotate(number(left), (end, row), (6, 0), textcoords="offset points", va="center")
        return _inline(title, figure)


def column_chart(title: str, columns: Sequence[tuple[str, float]], x: str, y: str) -> Element:
    """Return a chart of columns, each with a name below it.

    Args:
        columns: names and values; where names would overlap, some are left out.
        x: what the names are.
        y: what the values measure.
    """
    with _drawing(HEIGHT, x, y) as (figure, axes):
        _set_y(axes, [value for _, value in columns])
        axes.bar(range(len(columns)), [value for _, value in columns], color=_SERIES[0])
        axes.set_xlim(-0.6, max(len(columns) - 0.4, 4))
        longest = max((len(name) for name, _ in columns), default=1) * _CHARACTER + 6
        every = max(1, math.ceil(longest * len(columns) / (WIDTH - 80)))
        axes.set_xticks(range(0, len(columns), every), [name for name, _ in columns[::every]])
        return _inline(title, figure)


@contextmanager
def _drawing(height: float, x: str, y: str) -> Iterator[tuple[Figure, Axes]]:
    import matplotlib as mpl
    from matplotlib import figure as figures

    # A name may have characters that no font of this machine has; a browser has other fonts.
    with mpl.rc_context(_STYLE), warnings.catch_warnings(action="ignore"):
        figure = figures.Figure(
            figsize=(WIDTH / _DPI, height / _DPI), dpi=_DPI, layout="constrained"
        )
        axes = figure.add_subplot()
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        yield figure, axes


def _set_x(axes: Axes, values: Sequence[float], *, log: bool) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    known = [value for value in values if math.isfinite(value) and value > 0]
    most = max(known, default=1.0)
    least = max(min(known, default=1.0), most / _LOG_MAX)
    if log and most / least >= _LOG_FROM:
        axes.set_xscale("log", nonpositive="clip")
        axes.set_xlim(least / 1.1, most * 1.1)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if most / least < 300 else (1,)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, most * 1.03)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=_STEPS))
    axes.xaxis.set_major_formatter(lambda value, _: _tick(value))


def _set_y(axes: Axes, values: Sequence[float]) -> None:
    from matplotlib.ticker import MaxNLocator

    most = max((value for value in values if math.isfinite(value)), default=0.0)
    axes.set_ylim(0, most * 1.05 or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axes.yaxis.set_major_formatter(lambda value, _: _tick(value))
    axes.grid(axis="y", clip_on=False)


def _tick(value: float) -> str:
    return f"{number(value / 1000)}k" if value >= 10_000 else number(value)


def _draw_limit(axes: Axes, limit: Limit, row: int) -> None:
    axes.axvline(limit.x, color=_LIMIT, linestyle=(0, (5, 3)), linewidth=1)
    right = axes.transAxes.inverted().transform(axes.transData.transform((limit.x, 0)))[0] > 0.5
    axes.annotate(
        limit.label, (limit.x, 1), (-3 if right else 3, 3 + row * _LINE),
        ("data", "axes fraction"), "offset points", ha="right" if right else "left", color=_LIMIT,
    )  # fmt: skip


def _draw_line(axes: Axes, line: Series, points: Sequence[Point]) -> None:
    colour = _SERIES[line.colour % COLOURS]
    joined = [point for point in points if not point.hollow]
    axes.plot(
        [point.x for point in joined], [point.y for point in joined],
        color=colour, linestyle=_DASHES[line.colour % COLOURS // 2], linewidth=2,
        marker="o" if len(joined) == 1 and not line.dots else "",
    )  # fmt: skip
    for point in points if line.dots else ():
        if point.low is not None and point.high is not None and math.isfinite(point.high):
            axes.vlines(point.x, point.low, point.high, color=colour, linewidth=1.5)
        face = _PAPER if point.hollow else colour
        axes.plot(point.x, point.y, "o", color=colour, markerfacecolor=face, markersize=7)


def _draw_labels(axes: Axes, points: Sequence[Point]) -> None:
    """Write labels next to points where they cover nothing; others are left out."""
    at = [tuple(axes.transData.transform((p.x, p.y))) for p in points]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in at]
    frame = axes.bbox
    for point, (x, y) in zip(points, at, strict=True):
        text = clean(shorter(point.label, 18))
        width = len(text) * _CHARACTER
        for left, bottom in (
            (x + 8, y - _LINE / 2), (x - 8 - width, y - _LINE / 2),
            (x - width / 2, y + 7), (x - width / 2, y - 7 - _LINE),
        ):  # fmt: skip
            box = (left, bottom, left + width, bottom + _LINE)
            inside = frame.x0 <= left and box[2] <= frame.x1 and frame.y0 <= bottom
            if text and inside and box[3] <= frame.y1 and not any(_overlap(box, b) for b in taken):
                taken.append(box)
                axes.annotate(
                    text, (left, bottom + 3), xycoords="figure pixels", in_layout=False,
                )  # fmt: skip
                break


def _overlap(box: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def _inline(title: str, figure: Figure) -> Element:
    """Return a chart as an element of a page, in the page's colours and font."""
    for artist in figure.axes[0].get_children():
        artist.set_clip_on(False)
    file = StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=_NO_METADATA)
    chart = fromstring(file.getvalue())  # noqa: S314 - matplotlib has written it
    for node in chart.iter():
        node.tag = node.tag.rpartition("}")[2]
        node.attrib = {key.rpartition("}")[2]: value for key, value in node.attrib.items()}
        if node.tag == "g":
            node.attrib.pop("id", None)  # all charts have the same
        style = re.sub(r"font-family: [^;]*;?", "", node.get("style", ""))
        node.set("style", re.sub(r"#\w{6}", lambda colour: _variable(colour[0]), style))
    chart.remove(chart[0])  # a style for all of the page
    chart.attrib = {
        "role": "img",
        "aria-label": clean(title),
        "class": "chart",
        "viewBox": chart.get("viewBox", ""),
    }
    return chart


def _variable(colour: str) -> str:
    return f"var(--{_VARIABLES[colour]})" if colour in _VARIABLES else colour
