"""Estimates from earlier batches and arrivals: a batch's time, its memory, the next arrival.

A batch that is too large for the memory is halved in the model process, which costs the failed
attempts. So later batches are limited to the size that fits. The limit is raised again slowly,
because what used the memory may be gone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

#: The weight that earlier batches keep with each new batch.
MEMORY: Final = 0.95
#: With less variance of batch sizes, the slope cannot be separated from the constant. Two clients
#: whose jobs run together in one batch of eight have 0.1.
MIN_VARIANCE: Final = 0.04
#: For so many batches of one size, the slope counts that was known before.
SLOPE_BATCHES: Final = 500
#: The share of its time that a batch may wait for jobs that are known to come.
KNOWN_SHARE: Final = 0.02
#: How many full batches must run before a larger batch is tried; doubled after each failure.
PATIENCE_MIN: Final = 16
PATIENCE_MAX: Final = 4096
#: How many of the latest batches count for the least time, and their maximum age. With fewer there
#: is no estimate, because the first batches of a process are slow.
LEAST_BATCHES: Final = 20
LEAST_AGE_S: Final = 60.0
#: The share of the shortest batch that is the estimate: an input may cost less than any before it.
LEAST_SHARE: Final = 0.5
#: Weight of the newest gap in the running mean of inter-arrival gaps.
GAP_WEIGHT: Final = 0.1


@dataclass(slots=True)
class LatencyModel:
    """Running least squares of batch seconds over batch size; older batches count less."""

    weight: float = 0.0
    size: float = 0.0
    size2: float = 0.0
    time: float = 0.0
    size_time: float = 0.0
    _slope: float | None = None
    _slope_age: int = 0

    def add(self, size: int, seconds: float) -> None:
        """Add a batch that has run."""
        for name, value in (
            ("weight", 1.0), ("size", size), ("size2", size * size),
            ("time", seconds), ("size_time", size * seconds),
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) * MEMORY + value)
        mean = self.size / self.weight
        variance = self.size2 / self.weight - mean * mean
        if variance >= MIN_VARIANCE:
            covariance = self.size_time / self.weight - mean * self.time / self.weight
            self._slope, self._slope_age = max(0.0, covariance / variance), 0
            return
        self._slope_age += 1
        if self._slope_age > SLOPE_BATCHES:
            self._slope = None

    @property
    def line(self) -> tuple[float, float] | None:
        """The fixed seconds of a batch, and the seconds per item; None while unknown."""
        if self._slope is None:
            return None
        fixed_s = (self.time - self._slope * self.size) / self.weight
        return max(0.0, fixed_s), self._slope

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


class LeastTime:
    """The least time that a batch takes, estimated from recent batches.

    If no batch runs because all jobs were refused, the estimate expires and the next batch runs.
    """

    def __init__(self) -> None:
        self._took: deque[tuple[float, float]] = deque(maxlen=LEAST_BATCHES)

    def add(self, seconds: float, now: float) -> None:
        """Add a batch that has run."""
        self._took.append((now, seconds))

    def clear(self) -> None:
        """Discard the estimate, because a new model process may be faster."""
        self._took.clear()

    def at(self, now: float) -> float:
        """Return the estimate in seconds; 0 while it is unknown."""
        if len(self._took) < LEAST_BATCHES or self._took[0][0] < now - LEAST_AGE_S:
            return 0.0
        return min(seconds for _, seconds in self._took) * LEAST_SHARE


@dataclass(slots=True)
class MemoryLimit:
    """The batch size that fits into a model's memory.

    Attributes:
        allowed: the allowed batch sizes in order; empty if all are.
        limit: the largest size that is known to fit.
    """

    max_size: int
    allowed: tuple[int, ...] = ()
    limit: int = field(init=False)
    _good: int = 0
    _full: int = 0
    _patience: int = PATIENCE_MIN

    def __post_init__(self) -> None:
        self.limit = self.max_size

    def observe(self, size: int, fits: int) -> bool:
        """Learn from a batch that has run.

        `fits` is how many of its items fit together; 0 if all did.

        Returns:
            Whether `limit` has changed.
        """
        before = self.limit
        if fits:
            # A size that ran before fits, unless this batch has just failed with it.
            known = max(fits, self._good if self._good < size else 0)
            self.limit = max((step for step in self.allowed if step <= known), default=known)
            self._good, self._full = self.limit, 0
            self._patience = min(self._patience * 2, PATIENCE_MAX)
            return self.limit != before
        self._good = max(self._good, size)
        if size >= self.limit < self.max_size:
            self._full += 1
            if self._full >= self._patience:
                self._full = 0
                larger = min(self.max_size, self.limit + max(1, self.limit // 4))
                self.limit = min((n for n in self.allowed if n > self.limit), default=larger)
        return self.limit != before


@dataclass(slots=True)
class Arrivals:
    """The gaps between arrivals."""

    gap_s: float | None = None
    last: float | None = None

    def observe(self, at: float) -> None:
        """Add an arrival at this time."""
        last, old = self.last, self.gap_s
        if last is not None:
            gap = at - last if at > last else 0.0
            self.gap_s = gap if old is None else old + GAP_WEIGHT * (gap - old)
        self.last = at

    def expected_s(self, now: float) -> float | None:
        """Return the expected seconds until the next arrival; None while unknown."""
        if self.gap_s is None or self.last is None:
            return None
        return max(self.gap_s, now - self.last)
