"""Numbers, times, sizes and paths as text, for people: on the command line, in reports and logs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

NOTHING: Final = "–"  # noqa: RUF001 - a dash is what a table shows for nothing
#: Smaller numbers have an exponent.
_TINY: Final = 1e-6
#: A sentence lists at most this many names, and then the number of further names.
NAMED_MAX: Final = 3
_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60))


def number(value: float | None) -> str:
    """Return a number with three significant digits, or all digits before the point."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    if abs(value) < _TINY:
        return f"{value:.2e}"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    # 99.96 is rounded to 100.0 above.
    digits = max(0, 2 - math.floor(math.log10(abs(rounded))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rate(per_second: float) -> str:
    """Return a rate: `1,234/s` or `4.5/s`."""
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"


def duration(seconds: float) -> str:
    """Return a duration in one unit: `3 min`."""
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def ago(moment: datetime) -> str:
    """Return how long ago a moment was: `3 min ago`."""
    return f"{duration((datetime.now(UTC) - moment).total_seconds())} ago"


def milliseconds(value: float | None) -> str:
    """Return a duration in milliseconds: `12.3 ms` or `4.5 s`."""
    if value is None:
        return ""
    return f"{value:.1f} ms" if value < 1000 else f"{value / 1000:.1f} s"


def size(number: float) -> str:
    """Return a number of bytes: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def shorter(text: str, most: int) -> str:
    """Return a text that is cut off after `most` characters."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def printable(text: str, *, keep: str = "") -> str:
    """Return a text whose characters that do not print are escaped, except those of `keep`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text
    )


def path_text(path: Path | str) -> str:
    """Return a path as JSON text; a byte that is not UTF-8 is escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def count(number: int, noun: str) -> str:
    """Return a count with its noun: `1 job`, `2,000 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def named(names: Sequence[str]) -> str:
    """Return names for a sentence: the first few, and the number of the others."""
    shown = ", ".join(names[:NAMED_MAX])
    more = len(names) - NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
