"""What this API process counts itself, for /metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter

REFUSED_KINDS: Final = (
    "queue-full", "invalid-request", "payload-too-large", "unsupported-media",
    "broker-unavailable", "broker-full", "conflict",
)  # fmt: skip


class Counters:
    """Jobs admitted and refused since this process began, by model."""

    def __init__(self, models: Iterable[str]) -> None:
        self.registry = CollectorRegistry()
        admitted = Counter(
            "headrace_jobs_admitted",
            "Jobs that this API process enqueued.",
            ["model"],
            registry=self.registry,
        )
        self._refused = Counter(
            "headrace_jobs_rejected",
            "Submits that this API process refused.",
            ["model", "reason"],
            registry=self.registry,
        )
        self._admitted = {model: admitted.labels(model) for model in models}
        for model in self._admitted:
            self._refused.labels(model, "queue-full")

    def admitted(self, model: str) -> None:
        """A job was enqueued."""
        self._admitted[model].inc()

    def refused(self, model: str, reason: str) -> None:
        """A submit was refused with the error of this code."""
        self._refused.labels(model, reason if reason in REFUSED_KINDS else "other").inc()
