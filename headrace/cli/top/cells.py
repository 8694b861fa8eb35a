"""Numbers, durations, bars and untrusted text as table cells."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from headrace.cli.shared.output import printable

BAR_CHARS: Final = 10
#: Shares of a bar from which it is coloured.
WARN_FROM: Final = 0.8
BAD_FROM: Final = 0.95
WARN: Final = "yellow"
BAD: Final = "bold red"
DIM: Final = "bright_black"


def number(value: float | None) -> str:
    """Return a count: `1,234`, `56.7k`, `1.2M`."""
    if value is None:
        return ""
    if value < 10_000:
        return f"{value:,.0f}"
    return f"{value / 1000:.1f}k" if value < 1_000_000 else f"{value / 1_000_000:.1f}M"


def rate(value: float | None) -> str:
    """Return a rate per second: `0`, `0.4`, `12`, `3,400`."""
    if value is None:
        return ""
    return f"{value:.1f}" if 0.05 <= value < 10 else number(value)


def duration(seconds: float | None) -> str:
    """Return a duration in a few characters: `3ms`, `1.2s`, `4m10s`, `2h05m`, `3d`."""
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


def bar(share: float | None, *, warn: bool = True) -> Text:
    """Return a share as a bar followed by its percentage.

    Args:
        share: 0 to 1; None returns an empty cell.
        warn: a high share is bad, as for memory, and not good, as for a GPU's utilisation.
    """
    if share is None:
        return Text("")
    full = min(max(share, 0.0), 1.0)
    filled = round(full * BAR_CHARS)
    style = "green"
    if warn and full >= WARN_FROM:
        style = BAD if full >= BAD_FROM else WARN
    drawn = Text("█" * filled, style=style)
    drawn.append("░" * (BAR_CHARS - filled), style=DIM)
    drawn.append(f" {full:4.0%}")
    return drawn


def one_line(text: str) -> str:
    """Return untrusted text on one line with its control characters escaped."""
    return printable(" ".join(text.split()))
