"""Names of files and objects, and patterns in them: `*.png`, `shard-{000..099}.tar`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from headrace.errors import ConfigError

#: The most names of one text with ranges and lists.
NAMES_MAX: Final = 1_000_000
_WILDCARD: Final = re.compile(r"[*?\[]")
_GROUP: Final = re.compile(r"\{([^{}]*)\}")
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)")
_PIECE: Final = re.compile(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\])")
_REGEXES: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
#: The suffixes of a run's files next to its output: checkpoint, lock, spool, and temporary files.
_OWN_SUFFIXES: Final = re.compile(r"(\.(run|lock|rows|new|upload|parquet))*")


def is_of_output(path: str, output: str) -> bool:
    """Return whether a file is a run's output, or one of the run's files next to it.

    Args:
        output: the output, in the same form; "" for none.
    """
    if not output or not path.startswith(output):
        return False
    return _OWN_SUFFIXES.fullmatch(path[len(output) :]) is not None


def is_pattern(name: str) -> bool:
    """Return whether a name has `*`, `?` or `[`."""
    return _WILDCARD.search(name) is not None


def plain_parts(parts: Sequence[str]) -> int:
    """Return how many parts of a path are before its pattern. An existing name is no pattern."""
    for count, part in enumerate(parts):
        if is_pattern(part) and not os.path.lexists(os.path.join(*parts[: count + 1])):
            return count
    return len(parts)


def plain_prefix(pattern: str) -> str:
    """Return what comes before the first `*`, `?` or `[`."""
    found = _WILDCARD.search(pattern)
    return pattern[: found.start()] if found else pattern


def pattern_regex(pattern: str) -> re.Pattern[str]:
    """Return a pattern as a regular expression for whole paths.

    `*` and `?` stay within one folder, `**` goes through folders, `**/` is any number of them.

    Raises:
        ConfigError: a range in brackets has no meaning.
    """
    regex = ""
    for piece in _PIECE.split(pattern):
        if piece.startswith("[") and len(piece) > 2:
            inside = piece[1:-1]
            negated = inside.startswith("!")
            letters = re.sub(r"([\\\[\]^])", r"\\\1", inside[negated:])
            regex += f"[{'^' * negated}{letters}]"
        else:
            regex += _REGEXES.get(piece, re.escape(piece))
    try:
        return re.compile(regex, re.DOTALL)
    except re.error as error:
        raise ConfigError(f"the pattern {pattern!r} cannot be read: {error.msg}") from None


def expand_braces(name: str) -> list[str]:
    """Return all names of a text with ranges or lists in braces, in order.

    Braces around anything else are kept, as in a shell.

    Raises:
        ConfigError: these are more than NAMES_MAX names.
    """
    names = [""]
    at = 0
    for group in _GROUP.finditer(name):
        choices = _choices(group[1])
        if choices is None:
            continue
        if len(names) * len(choices) > NAMES_MAX:
            raise ConfigError(
                f"{name}: these are more than {NAMES_MAX} names", hint="Use a pattern with *."
            )
        between = name[at : group.start()]
        names = [f"{head}{between}{choice}" for head in names for choice in choices]
        at = group.end()
    return [head + name[at:] for head in names]


def _choices(inside: str) -> list[str] | range | None:
    bounds = _RANGE.fullmatch(inside)
    if bounds is None:
        return inside.split(",") if "," in inside else None
    first, last = int(bounds[1]), int(bounds[2])
    step = 1 if last >= first else -1
    if abs(last - first) >= NAMES_MAX:
        return range(NAMES_MAX + 1)
    # A zero in front of a bound pads all numbers to the longer bound, as in bash.
    padded = any(len(end) > 1 and end.startswith("0") for end in bounds.groups())
    width = max(map(len, bounds.groups())) if padded else 0
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]
