"""The nearest right name, for messages about a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

NAMES_SHOWN: Final = 10


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or nothing when no known name is near."""
    by_folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold(), by_folded, n=1)
    return f"; did you mean {by_folded[near[0]]}?" if near else ""


def listing(names: Iterable[str]) -> str:
    """The names in order with commas, cut after ten, `none` when there are none."""
    ordered = sorted(names)
    more = len(ordered) - NAMES_SHOWN
    shown = ", ".join(ordered[:NAMES_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown or "none"
