"""The waiting items of one batch key, in the order in which they leave."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from headrace.redis.keys import OFFLINE_STEP

#: Weight of the newest gap in the running mean of inter-arrival gaps.
GAP_WEIGHT: Final = 0.1
#: Used as the step of an item that has waited too long: it goes before all others.
FIRST: Final = -1

ItemT = TypeVar("ItemT")
#: What items are sorted by: their step, then the order in which they came.
Number = tuple[int, int]
Row = deque[tuple[Number, ItemT]]


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


def put(row: Row[ItemT], number: Number, item: ItemT) -> None:
    """Insert an item in order, from the back, because new items usually belong there."""
    at = len(row)
    while at and row[at - 1][0] > number:
        at -= 1
    row.insert(at, (number, item))


@dataclass(slots=True)
class KeyQueue(Generic[ItemT]):
    """The waiting items with their numbers, and the arrivals of online and offline items."""

    waiting: Row[ItemT] = field(default_factory=deque)
    online: Arrivals = field(default_factory=Arrivals)
    offline: Arrivals = field(default_factory=Arrivals)

    def arrivals(self, offline: bool) -> Arrivals:
        """Return the arrivals of one class; items are held only for others of their class."""
        return self.offline if offline else self.online

    @property
    def urgent(self) -> int:
        """How many of the first items are online, or go before all others."""
        waiting = self.waiting
        if not waiting or waiting[-1][0][0] < OFFLINE_STEP:
            return len(waiting)
        return sum(number[0] < OFFLINE_STEP for number, _ in waiting)
