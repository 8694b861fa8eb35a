"""Text and tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from extensions.tuning.pages.elements import clean

#: Characters that Markdown or HTML in it reads as something else than text.
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|&#~])")


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(clean(text).split()))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; `>` begins the header of a column of numbers."""
    names = [column.removeprefix(">") for column in columns]
    lines = [[escaped(cell) for cell in line] for line in (names, *rows)]
    wide = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    made = ["| " + " | ".join(map(str.ljust, line, wide)) + " |" for line in lines]
    ends = [":" if column.startswith(">") else "-" for column in columns]
    rule = "|".join("-" * (width + 1) + end for width, end in zip(wide, ends, strict=True))
    return "\n".join([made[0], f"|{rule}|", *made[1:]])
