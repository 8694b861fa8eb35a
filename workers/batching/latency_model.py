"""How long a batch takes on the device by its size, learnt from earlier batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: The weight that earlier batches keep with each new one.
MEMORY: Final = 0.95
#: With less variance of batch sizes, the slope cannot be separated from the constant.
MIN_VARIANCE: Final = 0.25
#: The share of its time that a batch may wait for jobs that are known to come.
KNOWN_SHARE: Final = 0.02


@dataclass(slots=True)
class LatencyModel:
    """Running least squares of batch seconds over batch size; older batches count less."""

    weight: float = 0.0
    size: float = 0.0
    size2: float = 0.0
    time: float = 0.0
    size_time: float = 0.0

    def add(self, size: int, seconds: float) -> None:
        """Add a batch that has run."""
        for name, value in (
            ("weight", 1.0), ("size", size), ("size2", size * size),
            ("time", seconds), ("size_time", size * seconds),
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) * MEMORY + value)

    @property
    def line(self) -> tuple[float, float] | None:
        """The fixed seconds of a batch, and the seconds per item; None while unknown."""
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
        """The fixed seconds of a batch; 0 while unknown."""
        line = self.line
        return 0.0 if line is None else line[0]

    @property
    def usual_s(self) -> float:
        """The recent mean seconds of a batch; 0 while unknown."""
        return self.time / self.weight if self.weight else 0.0

    def worth_s(self, size: int) -> float:
        """Return how long `size` items should wait for jobs that are known to come.

        They wait while one batch less saves more than that. The wait is at least a small share of a
        batch's time, because the saving is unknown until batches of several sizes have run.
        """
        return max(self.fixed_s / size, KNOWN_SHARE * self.usual_s)
