"""Reads the counters of `hr:stats:<model>`, which scripts, workers and API processes increment.

A scrape reads the counters of all models. To keep it cheap, numbers stay the text that Redis holds
(`benchmarks.operation.scrape`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace.observability.worker_report import HISTOGRAMS, field_of

#: The hash of one model, or the shared hash.
Fields = Mapping[bytes, bytes]
#: One field of each model, in the order of the models; None for a model without it.
Column = Sequence[bytes | None]

#: The bounds as they are shown, `+Inf` last.
BOUNDS: Final = {
    name: (*(f"{bound:g}" for bound in bounds), "+Inf") for name, bounds in HISTOGRAMS.items()
}
#: A counter at zero as Redis holds it, and as it is shown.
_NONE: Final = b"0"
ZERO: Final = b"0.0"


class Totals:
    """The counters of several models, by field; `none` is the column of a field without any."""

    def __init__(self, fields: Sequence[bytes], rows: Sequence[Column]) -> None:
        self.none: Column = (None,) * len(rows)
        columns: Iterable[Column] = zip(*rows, strict=True) if rows else [()] * len(fields)
        self._columns = dict(zip(fields, columns, strict=True))

    def add(self, model: int, fields: Fields) -> None:
        """Add all fields of one model, which may have more than were requested."""
        for field, value in fields.items():
            column = list(self._columns.get(field, self.none))
            column[model] = value
            self._columns[field] = column

    @property
    def fields(self) -> tuple[bytes, ...]:
        """Return the requested fields, then those that `add` added."""
        return tuple(self._columns)

    def column(self, field: str) -> Column:
        """Return one field of each model."""
        return self._columns.get(field.encode(), self.none)

    def labelled(self, name: str) -> dict[str, Column]:
        """Return the counters with one name of `worker_report.LABELLED`, by their label."""
        return {which: self._columns[raw] for which, raw in labelled(self._columns, name).items()}


def counted(column: Column) -> list[bytes]:
    """Return a counter of each model as it is shown."""
    return numbers([raw or _NONE for raw in column])


def labelled(fields: Iterable[bytes], name: str) -> dict[str, bytes]:
    """Return the fields of a counter with labels, by label, in alphabetical order."""
    prefix = f"{name}:".encode()
    found = sorted(field for field in fields if field.startswith(prefix))
    return {field.removeprefix(prefix).decode("utf-8", "replace"): field for field in found}


def histogram(totals: Totals, name: str, models: Iterable[int] | None = None) -> list[bytes]:
    """Return the numbers of a histogram of all models, or of some, one model after the other.

    The numbers are the count at or below each bound (the last is infinite), the total count and the
    sum. A histogram that cannot be read, such as one of another version, is all zeroes.
    """
    width, column = len(BOUNDS[name]) + 1, totals.column(field_of(name))
    numbers: list[bytes] = []
    for raw in column if models is None else [column[model] for model in models]:
        row = raw.split() if raw is not None and raw.isascii() else []
        if len(row) != width:
            row = [_NONE] * width
        numbers += *row[:-1], *row[-2:]
    return numbers


def read_labelled(fields: Fields, name: str) -> dict[str, bytes]:
    """Return the counters with one name by their label, as they are shown."""
    forms = labelled(fields, name)
    return dict(zip(forms, numbers([fields[raw] for raw in forms.values()]), strict=True))


def numbers(values: Iterable[bytes]) -> list[bytes]:
    """Return the values of counters as they are shown; 0.0 for values that are not numbers."""
    return [raw + b".0" if raw.isdigit() else _number(raw) for raw in values]


def _number(raw: bytes) -> bytes:
    # As HINCRBYFLOAT writes it; parsing and formatting it costs five times as much.
    if raw.replace(b".", b"", 1).isdigit():
        return raw
    try:
        return repr(float(raw)).encode()
    except ValueError:
        return ZERO
