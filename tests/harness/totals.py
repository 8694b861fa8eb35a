"""The counters of one model as numbers, read as a scrape reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from headrace import totals
from headrace.telemetry import COUNTED, HISTOGRAMS, LABELLED
from headrace.totals import BOUNDS, Fields


@dataclass(frozen=True)
class Histogram:
    """A histogram as Prometheus has it.

    Attributes:
        buckets: how many fell at or below each bound, by the bound as it is shown.
        sum: of all values.
    """

    buckets: dict[str, float]
    count: float
    sum: float


@dataclass(frozen=True)
class ModelTotals:
    """All that was counted of one model.

    Attributes:
        counted: plain counters.
        labelled: counters by what is counted, then by which.
    """

    histograms: dict[str, Histogram]
    counted: dict[str, float]
    labelled: dict[str, dict[str, float]]

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Read `hr:stats:<model>`."""
        return cls(
            {name: _histogram(fields, name) for name in HISTOGRAMS},
            {name: float(totals.counted([fields], name)[0]) for name in COUNTED},
            {name: _labelled(fields, name) for name in LABELLED},
        )


def _labelled(fields: Fields, name: str) -> dict[str, float]:
    return {which: float(count) for which, count in totals.read_labelled(fields, name).items()}


def _histogram(fields: Fields, name: str) -> Histogram:
    *counts, count, total = map(float, totals.histogram([fields], name))
    return Histogram(dict(zip(BOUNDS[name], counts, strict=True)), count, total)
