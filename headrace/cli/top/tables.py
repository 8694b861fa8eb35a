"""Tables on a terminal: columns are left out by their rank, and no line is ever broken.

Also numbers, times and shares as they stand in their cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len
from rich.text import Text

from headrace.cli.shared.output import printable

#: Between two columns, and between two tables side by side.
GAP: Final = 2
TABLES_GAP: Final = 4
#: A name is cut to this, before a column is left out for it.
NAME_MIN: Final = 10
NAME_MAX: Final = 64
BAR: Final = 10
#: From where on a bar is coloured so.
SOON_FROM: Final = 0.8
BAD_FROM: Final = 0.95
#: Columns up to this rank are worth a shorter name.
SQUEEZES: Final = 5
SOON: Final = "yellow"
BAD: Final = "bold red"
DIM: Final = "bright_black"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        head: its head.
        cell: what a row has there.
        rank: those of the lowest rank are left out last.
        left: aligned to the left.
        sort: what rows are sorted by under this column; None where they are not.
        least: its least width, so that columns stand still while numbers change.
    """

    head: str
    cell: Callable[[Any], Text]
    rank: int
    left: bool = False
    sort: Callable[[Any], float] | None = None
    least: int = 0


def number(value: float | None) -> str:
    """A count: `1,234`, `56.7k`, `1.2M`."""
    if value is None:
        return ""
    if value < 10_000:
        return f"{value:,.0f}"
    return f"{value / 1000:.1f}k" if value < 1_000_000 else f"{value / 1_000_000:.1f}M"


def rate(value: float | None) -> str:
    """What happens a second: `0`, `0.4`, `12`, `3,400`."""
    if value is None:
        return ""
    return f"{value:.1f}" if 0.05 <= value < 10 else number(value)


def duration(seconds: float | None) -> str:
    """A time in a few characters: `3ms`, `1.2s`, `4m10s`, `2h05m`, `3d`."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1000:.1f}ms" if seconds < 0.00995 else f"{seconds * 1000:.0f}ms"
    if seconds < 100:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    minutes, left_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{left_s:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours / 24:.0f}d"


def age(seconds: float) -> str:
    """How old the oldest is; nothing where nothing waits."""
    return duration(seconds) if seconds >= 0.05 else ""


def bar(share: float | None, width: int = BAR, *, alarming: bool = True) -> Text:
    """A share as a bar with its percentage behind it.

    Args:
        share: 0 to 1; None draws nothing.
        width: of the bar alone.
        alarming: much of it is bad, as of memory, and not good, as of a device's time.
    """
    if share is None:
        return Text("")
    full = min(max(share, 0.0), 1.0)
    filled = round(full * width)
    style = "green"
    if alarming and full >= SOON_FROM:
        style = BAD if full >= BAD_FROM else SOON
    drawn = Text("█" * filled, style=style)
    drawn.append("░" * (width - filled), style=DIM)
    drawn.append(f" {full:4.0%}")
    return drawn


def one_line(text: str) -> str:
    """A text of strangers as it can stand in a line of a terminal."""
    return printable(" ".join(text.split()))


def _width_of(block: Sequence[Text]) -> int:
    return max(line.cell_len for line in block)


def side_by_side(blocks: list[list[Text]], width: int) -> list[list[list[Text]]]:
    """Tables in groups that fit beside each other, in their order."""
    groups: list[list[list[Text]]] = []
    used = 0
    for block in blocks:
        wide = _width_of(block)
        if groups and used + TABLES_GAP + wide <= width:
            groups[-1].append(block)
            used += TABLES_GAP + wide
        else:
            groups.append([block])
            used = wide
    return groups


def joined(group: list[list[Text]]) -> list[Text]:
    """Tables beside each other, line by line."""
    lines = []
    for i in range(max(map(len, group))):
        line = Text()
        for at, block in enumerate(group):
            part = block[i].copy() if i < len(block) else Text("")
            if at < len(group) - 1:
                part.pad_right(_width_of(block) + TABLES_GAP - part.cell_len)
            line.append_text(part)
        lines.append(line)
    return lines


def table(
    columns: Sequence[Column], rows: Sequence[Any], width: int, *, sort: str = "",
    reverse: bool = False,
) -> list[Text]:  # fmt: skip
    """A table of as many of the columns as fit, those of the lowest ranks first.

    Args:
        columns: in their order on the screen; the first is a name, and is cut where need be.
        rows: what their cells are made of.
        width: of the terminal.
        sort: the head of the column that is marked.
        reverse: which mark it gets.
    """
    marks = {sort: "^" if reverse else "v"} if sort else {}
    heads = [Text(column.head + marks.get(column.head, ""), style="bold") for column in columns]
    cells = [[column.cell(row) for column in columns] for row in rows]
    widths = [
        max([heads[i].cell_len, columns[i].least, *(line[i].cell_len for line in cells)])
        for i in range(len(columns))
    ]
    widths[0] = min(widths[0], NAME_MAX)
    kept = _fitting(columns, widths, width)
    return [
        _line([line[i] for i in kept], [widths[i] for i in kept], [columns[i].left for i in kept])
        for line in (heads, *cells)
    ]


def _fitting(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """The columns that fit; the first one's width is cut where that makes room for a rank of 3."""
    full, least = widths[0], min(widths[0], NAME_MIN)
    by_rank = sorted(range(len(columns)), key=lambda i: (columns[i].rank, i))
    kept: list[int] = []
    for i in by_rank:
        # The first ranks may make the name shorter, the others not.
        name = least if columns[i].rank <= SQUEEZES else full
        others = sum(widths[j] + GAP for j in (*kept, i) if j != 0)
        if i == 0 or name + others <= width:
            kept.append(i)
        else:
            break
    others = sum(widths[j] + GAP for j in kept if j != 0)
    widths[0] = max(min(full, width - others), 1)
    return sorted(kept)


def _line(cells: list[Text], widths: list[int], left: list[bool]) -> Text:
    line = Text()
    last = len(cells) - 1
    for i, (cell, wide, to_left) in enumerate(zip(cells, widths, left, strict=True)):
        part = cell.copy()
        part.truncate(wide, overflow="ellipsis")
        space = wide - cell_len(part.plain)
        if not to_left:
            part.pad_left(space)
        elif i < last:
            part.pad_right(space)
        line.append_text(part)
        if i < last:
            line.append(" " * GAP)
    return line
