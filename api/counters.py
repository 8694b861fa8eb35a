"""What this API process counts, until it has told Redis, where the counts of all add up."""

from __future__ import annotations

from collections import Counter

from headrace.telemetry import ADMITTED, REJECTED

Counts = Counter[tuple[str, str]]


class Counters:
    """Jobs admitted and submits refused since the last `take`, by model.

    Plain numbers: everything happens on one event loop, and a lock for each count would cost more
    than the count.
    """

    def __init__(self) -> None:
        self._counts: Counts = Counter()

    def admitted(self, model: str, count: int = 1) -> None:
        """Jobs were enqueued."""
        self._counts[model, ADMITTED] += count

    def refused(self, model: str, reason: str, count: int = 1) -> None:
        """Submits were refused with the error of this code."""
        self._counts[model, f"{REJECTED}:{reason}"] += count

    def take(self) -> Counts:
        """Take the counts, by model and field of `hr:stats:<model>`."""
        taken, self._counts = self._counts, Counter()
        return taken

    def give_back(self, counts: Counts) -> None:
        """These could not be told; they are told next time."""
        self._counts.update(counts)
