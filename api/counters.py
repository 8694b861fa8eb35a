"""What this API process counts itself, for /metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, Metric


class Counters:
    """Jobs admitted and submits refused since this process began, by model.

    Plain numbers: everything happens on one event loop, and a lock for each count would cost more
    than the count.
    """

    def __init__(self, models: Iterable[str]) -> None:
        names = list(models)
        self._admitted = Counter(dict.fromkeys(names, 0))
        self._refused = Counter({(name, "queue-full"): 0 for name in names})

    def admitted(self, model: str) -> None:
        """A job was enqueued."""
        self._admitted[model] += 1

    def refused(self, model: str, reason: str) -> None:
        """A submit was refused with the error of this code."""
        self._refused[model, reason] += 1

    def collect(self) -> Iterator[Metric]:
        """As metrics."""
        admitted = CounterMetricFamily(
            "headrace_jobs_admitted", "Jobs that this API process enqueued.", labels=["model"]
        )
        for model, count in self._admitted.items():
            admitted.add_metric([model], count)
        yield admitted
        refused = CounterMetricFamily(
            "headrace_jobs_rejected",
            "Submits that this API process refused, by the code of the problem.",
            labels=["model", "reason"],
        )
        for (model, reason), count in self._refused.items():
            refused.add_metric([model, reason], count)
        yield refused
