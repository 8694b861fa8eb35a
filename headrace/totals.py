"""Reads the counters of `hr:stats:<model>`, as scripts, workers and API processes have added them.

A scrape reads those of every model, so that no number is taken apart that need not be: each goes
out as the text that Redis has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from headrace.telemetry import HISTOGRAMS, field_of

#: The hash of one model, or the one of no model.
Fields = Mapping[bytes, bytes]

#: The bounds as they are shown, `+Inf` last.
BOUNDS: Final = {
    name: (*(f"{bound:g}" for bound in bounds), "+Inf") for name, bounds in HISTOGRAMS.items()
}
_HISTOGRAM_FIELDS: Final = {name: field_of(name).encode() for name in HISTOGRAMS}
#: How a counter lies there that has counted nothing, and how it is shown.
_NONE: Final = b"0"
ZERO: Final = b"0.0"


def counted(models: Iterable[Fields], name: str) -> list[bytes]:
    """A plain counter, one of `telemetry.COUNTED`, of each model."""
    raw = name.encode()
    return numbers([fields.get(raw, _NONE) for fields in models])


def labelled(fields: Iterable[bytes], name: str) -> dict[str, bytes]:
    """The fields of counters of one thing in several forms, by which, in the alphabet's order.

    Args:
        fields: all that there are.
        name: what is counted, one of `telemetry.LABELLED`.
    """
    prefix = f"{name}:".encode()
    found = sorted(field for field in fields if field.startswith(prefix))
    return {field.removeprefix(prefix).decode("utf-8", "replace"): field for field in found}


def histogram(models: Iterable[Fields], name: str) -> list[bytes]:
    """A histogram of each model, its numbers one after the other.

    Of each these are how many fell at or below each bound, the last of which is infinite, how many
    there were, and the sum of all. What cannot be read, as of another version, is zeroes.
    """
    field, count = _HISTOGRAM_FIELDS[name], len(BOUNDS[name]) + 1
    found: list[bytes] = []
    for fields in models:
        raw = fields.get(field, b"")
        row = raw.split()
        if len(row) != count or not raw.isascii():
            row = [b"0"] * count
        found += row
        found.insert(-1, row[-2])
    return found


def read_labelled(fields: Fields, name: str) -> dict[str, bytes]:
    """The counters under one name, by which, as they are shown."""
    forms = labelled(fields, name)
    return dict(zip(forms, numbers([fields[raw] for raw in forms.values()]), strict=True))


def numbers(values: Iterable[bytes]) -> list[bytes]:
    """The values of counters as they are shown; 0.0 where something else stands there."""
    return [raw + b".0" if raw.isdigit() else _number(raw) for raw in values]


def _number(raw: bytes) -> bytes:
    # As HINCRBYFLOAT leaves it; to parse it and write it again costs five times as much.
    if raw.replace(b".", b"", 1).isdigit():
        return raw
    try:
        return repr(float(raw)).encode()
    except ValueError:
        return ZERO
