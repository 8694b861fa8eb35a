"""When a batch leaves: decided from the items and the time alone. No Redis, no threads, no clock.

The policy is work-conserving. A free device takes what is there; while it is busy, items collect.
Holding a batch back for company happens only while the device is free, and only when it pays: an
item that waits for the next arrival costs each waiting item one inter-arrival gap, and saves the
fixed cost of one batch. So a batch of n is held while n * gap < b, where the time of a batch of
size s is fitted as a*s + b (least squares with forgetting, as in Clipper and BentoML's CORK), and
never beyond `max_batch_delay_s` from when its oldest item was enqueued.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, Protocol, TypeVar

Reason = Literal["full", "idle", "deadline", "alone", "drain"]

#: Weight of the newest gap in the running mean of inter-arrival gaps.
GAP_WEIGHT: Final = 0.1
#: What is kept of the past of the batch-time fit with each new batch.
FIT_MEMORY: Final = 0.95
#: Jobs that arrive together say that the next comes at once; a hold of no length would be a spin.
HOLD_MIN_S: Final = 0.0005
#: Below this spread of batch sizes (variance) a slope cannot be told from a constant.
FIT_MIN_VARIANCE: Final = 0.25


class Batchable(Protocol):
    """What the batcher needs to know of an item.

    Attributes:
        enqueued_at: seconds, on the same clock as every `now`.
        alone: it was in a batch that was lost and must run by itself.
    """

    enqueued_at: float
    alone: bool


ItemT = TypeVar("ItemT", bound=Batchable)


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of a model's batches."""

    max_batch_size: int
    max_batch_delay_s: float


@dataclass(frozen=True, slots=True)
class Leave(Generic[ItemT]):
    """These items leave now as one batch."""

    items: list[ItemT]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing leaves before `until`, unless more arrives."""

    until: float


@dataclass(slots=True)
class BatchTimeFit:
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
            setattr(self, name, getattr(self, name) * FIT_MEMORY + value)

    @property
    def fixed_s(self) -> float:
        """Seconds that a batch costs beyond its items; 0 while that cannot be told."""
        if not self.weight:
            return 0.0
        mean = self.size / self.weight
        variance = self.size2 / self.weight - mean * mean
        if variance < FIT_MIN_VARIANCE:
            return 0.0
        covariance = self.size_time / self.weight - mean * self.time / self.weight
        return max(0.0, self.time / self.weight - mean * covariance / variance)


@dataclass(slots=True)
class Batcher(Generic[ItemT]):
    """The waiting items of one model, and when they leave."""

    policy: Policy
    fit: BatchTimeFit = field(default_factory=BatchTimeFit)
    _waiting: deque[ItemT] = field(default_factory=deque)
    _alone: deque[ItemT] = field(default_factory=deque)
    _gap_s: float | None = None
    _last_arrival: float | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._alone)

    @property
    def room(self) -> int:
        """How many more items one prepared batch can take."""
        return max(0, self.policy.max_batch_size - len(self))

    def add(self, item: ItemT) -> None:
        """Take an item, in the order in which it is to run."""
        if self._last_arrival is not None:
            gap = max(0.0, item.enqueued_at - self._last_arrival)
            old = self._gap_s
            self._gap_s = gap if old is None else old + GAP_WEIGHT * (gap - old)
        self._last_arrival = item.enqueued_at
        (self._alone if item.alone else self._waiting).append(item)

    def gap_s(self, now: float) -> float | None:
        """The expected seconds to the next arrival; None while unknown."""
        if self._gap_s is None or self._last_arrival is None:
            return None
        return max(self._gap_s, now - self._last_arrival)

    def observe(self, size: int, seconds: float) -> None:
        """Learn what a batch of this size took on the device."""
        self.fit.add(size, seconds)

    def decide(self, now: float) -> Leave[ItemT] | Hold | None:
        """What to do with a free device: run a batch, hold it back, or nothing (None)."""
        if self._alone:
            return Leave([self._alone.popleft()], "alone")
        if not self._waiting:
            return None
        if len(self._waiting) >= self.policy.max_batch_size:
            return self._leave("full")
        deadline = self._waiting[0].enqueued_at + self.policy.max_batch_delay_s
        if now >= deadline:
            return self._leave("deadline")
        gap = self.gap_s(now)
        if gap is None or gap > deadline - now or len(self._waiting) * gap >= self.fit.fixed_s:
            return self._leave("idle")
        return Hold(min(deadline, now + max(gap * 2, HOLD_MIN_S)))

    def take_all(self) -> list[ItemT]:
        """Empty the batcher: for release and drain."""
        items = [*self._alone, *self._waiting]
        self._alone.clear()
        self._waiting.clear()
        return items

    def _leave(self, reason: Reason) -> Leave[ItemT]:
        size = min(len(self._waiting), self.policy.max_batch_size)
        return Leave([self._waiting.popleft() for _ in range(size)], reason)
