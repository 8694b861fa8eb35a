"""Tables that are printed row by row and written into a document, mostly docs/performance.md."""

from __future__ import annotations

import math
import os
import platform
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

#: Lines of the documents are not longer.
LINE_MAX: Final = 120
DOC: Final = Path(__file__).resolve().parents[2] / "docs" / "performance.md"


class Table:
    """Rows of cells; the first cell is the row's name.

    Args:
        columns: the column headers, that of the names first.
    """

    def __init__(self, *columns: str) -> None:
        self.columns = columns or ("", "")
        self.rows: list[tuple[str, ...]] = []
        if columns:
            print(_line(columns), flush=True)

    def add(self, *cells: str) -> None:
        """Add a row, and print it."""
        if len(cells) != len(self.columns):
            raise ValueError(f"the table has {len(self.columns)} columns, the row {len(cells)}")
        self.rows.append(cells)
        print(_line(cells), flush=True)

    def markdown(self) -> str:
        """Return the table as Markdown."""
        heads = "".join(f" {head} |" if head else " |" for head in self.columns)
        lines = [f"|{heads}", "|---" * len(self.columns) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines)


def _line(cells: tuple[str, ...]) -> str:
    return f"{cells[0]:58} " + " ".join(f"{cell:>14}" for cell in cells[1:])


def interval(ratios: list[float]) -> str:
    """Return the median and its interval of at least 95 % by order statistics.

    Outliers do not move it: on a shared machine a neighbour may take a core during half a pair.
    """
    count, ordered = len(ratios), sorted(ratios)
    if count == 1:
        return f"{ordered[0]:.3f}"
    outside, cut = 2 / 2**count, 0
    while outside + 2 * math.comb(count, cut + 1) / 2**count <= 0.05:
        cut += 1
        outside += 2 * math.comb(count, cut) / 2**count
    return (
        f"{median(ratios):.3f} ({ordered[cut]:.3f} to {ordered[-1 - cut]:.3f}, "
        f"{100 * (1 - outside):.0f} %)"
    )


def write_tables(name: str, description: str, *tables: Table, doc: Path = DOC) -> None:
    """Put tables into the document, between `<!-- name:begin -->` and `<!-- name:end -->`.

    Args:
        name: the name of the place.
        description: how it was measured; it follows the date and the machine.

    Raises:
        ValueError: the document does not have the place.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = doc.read_text("utf-8")
    if begin not in text or end not in text:
        raise ValueError(f"{doc} has no place for the table: put {begin} and {end} there")
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    where = (
        f"Measured {datetime.now(UTC).date().isoformat()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}; {description}"
    )
    where = textwrap.fill(where, LINE_MAX, break_long_words=False, break_on_hyphens=False)
    body = "\n\n".join([where, *(table.markdown() for table in tables)])
    doc.write_text(f"{head}{begin}\n{body}\n{end}{tail}", "utf-8")
