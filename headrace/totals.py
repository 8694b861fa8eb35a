"""Reads the counters of `hr:stats:<model>`, as scripts, workers and API processes have added them.

A scrape reads those of every model, so that a histogram is not taken apart: its numbers are shown
as Redis has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from headrace.telemetry import COUNTED, HISTOGRAMS, LABELLED, field_of

_FIELDS: Final = {name: field_of(name).encode() for name in HISTOGRAMS}
_HISTOGRAM_FIELDS: Final = frozenset(_FIELDS.values())
#: The bounds as they are shown, `+Inf` last.
BOUNDS: Final = {
    name: (*(f"{bound:g}" for bound in bounds), "+Inf") for name, bounds in HISTOGRAMS.items()
}
_ZEROES: Final = {name: ["0"] * (len(bounds) + 1) for name, bounds in BOUNDS.items()}


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram as Prometheus has it.

    Attributes:
        numbers: how many fell at or below each bound, the last of which is infinite, and the sum
            of all values; each as text.
    """

    name: str
    numbers: list[str]

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """The counts by their bounds, as they are shown."""
        counts = map(float, self.numbers[:-1])
        return list(zip(BOUNDS[self.name], counts, strict=True))

    @property
    def count(self) -> str:
        """How many values there were, as text."""
        return self.numbers[-2]

    @property
    def sum(self) -> float:
        """Of all values."""
        return float(self.numbers[-1])


@dataclass(frozen=True, slots=True)
class ModelTotals:
    """All that was counted of one model.

    Attributes:
        histograms: by name.
        counted: plain counters, all of `telemetry.COUNTED`.
        labelled: counters by what is counted (all of `telemetry.LABELLED`), then by which.
    """

    histograms: dict[str, Histogram]
    counted: dict[str, float]
    labelled: dict[str, dict[str, float]]

    @classmethod
    def from_fields(cls, fields: Mapping[bytes, bytes]) -> ModelTotals:
        """Read `hr:stats:<model>`; what is not known, as of another version, is passed over."""
        counted = dict.fromkeys(COUNTED, 0.0)
        labelled: dict[str, dict[str, float]] = {name: {} for name in LABELLED}
        for raw in fields.keys() - _HISTOGRAM_FIELDS:
            name, which = _parted(raw)
            into = labelled.get(name)
            if into is not None:
                into[which] = number(fields[raw])
            elif name in counted:
                counted[name] = number(fields[raw])
        return cls(
            {name: _histogram(name, fields.get(field)) for name, field in _FIELDS.items()},
            counted,
            labelled,
        )


@lru_cache(maxsize=4096)
def _parted(raw: bytes) -> tuple[str, str]:
    name, _, which = raw.decode("utf-8", "replace").partition(":")
    return name, which


def read_labelled(fields: Mapping[bytes, bytes], name: str) -> dict[str, float]:
    """The counters under one name, by what stands behind its colon."""
    prefix = f"{name}:".encode()
    return {
        raw.removeprefix(prefix).decode("utf-8", "replace"): number(value)
        for raw, value in fields.items()
        if raw.startswith(prefix)
    }


def number(raw: bytes) -> float:
    """A counter's value; 0 where something else stands there."""
    try:
        return float(raw)
    except ValueError:
        return 0.0


def _histogram(name: str, raw: bytes | None) -> Histogram:
    zeroes = _ZEROES[name]
    numbers = raw.decode("ascii", "replace").split() if raw else zeroes
    return Histogram(name, numbers if len(numbers) == len(zeroes) else zeroes)
