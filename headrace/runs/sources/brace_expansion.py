"""Ranges and lists in the names of files: `shard-{000..099}.tar`, `{train,val}.csv`."""

from __future__ import annotations

import re
from typing import Final

from headrace.errors import ConfigError

#: Names that one range may stand for.
NAMES_MAX: Final = 1_000_000
_GROUP: Final = re.compile(r"\{([^{}]*)\}")
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)")


def expand(named: str) -> list[str]:
    """The names that a text stands for, in order; itself where it has neither range nor list.

    Braces around anything else stand for themselves, as in a shell.

    Raises:
        ConfigError: it stands for more than a million names.
    """
    found = [""]
    at = 0
    for group in _GROUP.finditer(named):
        choices = _choices(group[1])
        if choices is None:
            continue
        if len(found) * len(choices) > NAMES_MAX:
            raise ConfigError(
                f"{named}: these are more than {NAMES_MAX} names", hint="Use a pattern with *."
            )
        between = named[at : group.start()]
        found = [f"{head}{between}{choice}" for head in found for choice in choices]
        at = group.end()
    return [head + named[at:] for head in found]


def _choices(inside: str) -> list[str] | range | None:
    bounds = _RANGE.fullmatch(inside)
    if bounds is None:
        return inside.split(",") if "," in inside else None
    first, last = int(bounds[1]), int(bounds[2])
    step = 1 if last >= first else -1
    if abs(last - first) >= NAMES_MAX:
        return range(NAMES_MAX + 1)
    # Digits before the first one say how wide all are, as in bash.
    padded = any(len(end) > 1 and end.startswith("0") for end in bounds.groups())
    width = max(map(len, bounds.groups())) if padded else 0
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]
