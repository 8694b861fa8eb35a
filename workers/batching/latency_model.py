"""What a batch takes on the device by its size, learnt from those that ran. Knows no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: What is kept of the past with each new batch.
MEMORY: Final = 0.95
#: Below this spread of batch sizes (variance) a slope cannot be told from a constant.
MIN_VARIANCE: Final = 0.25
#: Which share of its time a batch may wait for company that is known to come.
KNOWN_SHARE: Final = 0.02


@dataclass(slots=True)
class LatencyModel:
    """Running least squares of batch seconds over batch size, older batches forgotten."""

    weight: float = 0.0
    size: float = 0.0
    size2: float = 0.0
    time: float = 0.0
    size_time: float = 0.0

    def add(self, size: int, seconds: float) -> None:
        """Learn from one batch."""
        for name, value in (
            ("weight", 1.0), ("size", size), ("size2", size * size),
            ("time", seconds), ("size_time", size * seconds),
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) * MEMORY + value)

    @property
    def line(self) -> tuple[float, float] | None:
        """Seconds that a batch costs beyond its items, and per item; None while unknown."""
        if not self.weight:
            return None
        mean = self.size / self.weight
        variance = self.size2 / self.weight - mean * mean
        if variance < MIN_VARIANCE:
            return None
        covariance = self.size_time / self.weight - mean * self.time / self.weight
        slope = max(0.0, covariance / variance)
        return max(0.0, self.time / self.weight - mean * slope), slope

    @property
    def fixed_s(self) -> float:
        """Seconds that a batch costs beyond its items; 0 while that cannot be told."""
        line = self.line
        return 0.0 if line is None else line[0]

    @property
    def usual_s(self) -> float:
        """What batches have taken of late; 0 while unknown."""
        return self.time / self.weight if self.weight else 0.0

    def worth_s(self, size: int) -> float:
        """How long so many items are to wait for company that is known to come.

        As long as a batch less saves more than that, or as it hardly counts beside what a batch
        takes: what is saved is not known before there were batches of several sizes.
        """
        return max(self.fixed_s / size, KNOWN_SHARE * self.usual_s)
