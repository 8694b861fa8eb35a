"""The counters of one model as numbers, read as a scrape reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from headrace.observability import totals
from headrace.observability.totals import BOUNDS, Fields, Totals
from headrace.observability.worker_report import COUNTED, HISTOGRAMS, LABELLED


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
        found = totals.Totals(list(fields), [list(fields.values())])
        return cls(
            {name: _histogram(found, name) for name in HISTOGRAMS},
            {name: float(totals.counted(found.column(name))[0]) for name in COUNTED},
            {name: _labelled(found, name) for name in LABELLED},
        )


def _labelled(found: Totals, name: str) -> dict[str, float]:
    forms = found.labelled(name)
    return {which: float(totals.counted(column)[0]) for which, column in forms.items()}


def _histogram(found: Totals, name: str) -> Histogram:
    *counts, count, total = map(float, totals.histogram(found, name))
    return Histogram(dict(zip(BOUNDS[name], counts, strict=True)), count, total)
