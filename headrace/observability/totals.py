"""Reads the counters of `hr:stats:<model>`, as scripts, workers and API processes have added them.

A scrape reads those of every model, so that no number is taken apart that need not be: each goes
out as the text that Redis has, and what is done is done with one field of all models at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final

from headrace.observability.worker_report import HISTOGRAMS, field_of

#: The hash of one model, or the one of no model.
Fields = Mapping[bytes, bytes]
#: One field of each model, in the models' order; None where a model has none.
Column = Sequence[bytes | None]

#: The bounds as they are shown, `+Inf` last.
BOUNDS: Final = {
    name: (*(f"{bound:g}" for bound in bounds), "+Inf") for name, bounds in HISTOGRAMS.items()
}
#: How a counter lies there that has counted nothing, and how it is shown.
_NONE: Final = b"0"
ZERO: Final = b"0.0"
_ZEROES: Final = {name: b" ".join([_NONE] * (len(bounds) + 1)) for name, bounds in BOUNDS.items()}
#: Stands between the histograms of two models; no number is written so.
_BETWEEN: Final = b"|"


class Totals:
    """The counters of several models, by field.

    Args:
        fields: those that were asked for of every model.
        rows: their values, of each model.

    Attributes:
        none: the column of a field that no model has.
    """

    def __init__(self, fields: Sequence[bytes], rows: Sequence[Column]) -> None:
        self.none: Column = (None,) * len(rows)
        columns: Iterable[Column] = zip(*rows, strict=True) if rows else [()] * len(fields)
        self._columns = dict(zip(fields, columns, strict=True))

    def add(self, model: int, fields: Fields) -> None:
        """All fields of one model, of which some were perhaps not asked for of every one."""
        for field, value in fields.items():
            column = list(self._columns.get(field, self.none))
            column[model] = value
            self._columns[field] = column

    @property
    def fields(self) -> tuple[bytes, ...]:
        """Those that were asked for, and then those that any model has beside them."""
        return tuple(self._columns)

    def column(self, field: str) -> Column:
        """One field of each model."""
        return self._columns.get(field.encode(), self.none)

    def labelled(self, name: str) -> dict[str, Column]:
        """Counters of one thing in several forms, one of `telemetry.LABELLED`, by which."""
        return {which: self._columns[raw] for which, raw in labelled(self._columns, name).items()}


def counted(column: Column) -> list[bytes]:
    """A counter of each model as it is shown."""
    return numbers([raw or _NONE for raw in column])


def labelled(fields: Iterable[bytes], name: str) -> dict[str, bytes]:
    """The fields of counters of one thing in several forms, by which, in the alphabet's order.

    Args:
        fields: all that there are.
        name: what is counted.
    """
    prefix = f"{name}:".encode()
    found = sorted(field for field in fields if field.startswith(prefix))
    return {field.removeprefix(prefix).decode("utf-8", "replace"): field for field in found}


def histogram(totals: Totals, name: str) -> Sequence[bytes]:
    """A histogram of each model, its numbers one after the other.

    Of each these are how many fell at or below each bound, the last of which is infinite, how many
    there were, and the sum of all. What cannot be read, as of another version, is zeroes.
    """
    none, width = _ZEROES[name], len(BOUNDS[name]) + 1
    rows = [raw or none for raw in totals.column(field_of(name))]
    if not rows:
        return ()
    numbers = _apart(rows)
    # All rows at once: to look at each costs twice as much.
    between = numbers[width :: width + 1]
    if len(numbers) != len(rows) * (width + 1) - 1 or between.count(_BETWEEN) != len(rows) - 1:
        numbers = _apart([row if len(_apart([row])) == width else none for row in rows])
    return _in_order(width, len(rows))(numbers)


def _apart(rows: Sequence[bytes]) -> list[bytes]:
    """The numbers of these rows, with one of `_BETWEEN` between each two; none if they are not."""
    text = b" | ".join(rows)
    return text.split() if text.isascii() and text.count(_BETWEEN) == len(rows) - 1 else []


@lru_cache(maxsize=64)
def _in_order(width: int, count: int) -> Callable[[Sequence[bytes]], tuple[bytes, ...]]:
    """Takes so many rows, each of so many numbers, and says the last but one of each twice."""
    row = [*range(width - 1), width - 2, width - 1]
    return itemgetter(*(n * (width + 1) + at for n in range(count) for at in row))


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
