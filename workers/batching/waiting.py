"""The items of one batch key that wait, in the order in which they leave. Knows no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from headrace.redis.keys import OFFLINE_STEP

#: Weight of the newest gap in the running mean of inter-arrival gaps.
GAP_WEIGHT: Final = 0.1
#: In place of its step: it has waited too long, and goes before all others.
FIRST: Final = -1

ItemT = TypeVar("ItemT")
#: An item's place: its step, then in the order in which it came.
Number = tuple[int, int]
Row = deque[tuple[Number, ItemT]]


@dataclass(slots=True)
class Arrivals:
    """How close together items come."""

    gap_s: float | None = None
    last: float | None = None

    def observe(self, at: float) -> None:
        """One came."""
        last, old = self.last, self.gap_s
        if last is not None:
            gap = at - last if at > last else 0.0
            self.gap_s = gap if old is None else old + GAP_WEIGHT * (gap - old)
        self.last = at

    def expected_s(self, now: float) -> float | None:
        """The expected seconds to the next arrival; None while unknown."""
        if self.gap_s is None or self.last is None:
            return None
        return max(self.gap_s, now - self.last)


def put(row: Row[ItemT], number: Number, item: ItemT) -> None:
    """Into its place; what comes last is usually worst."""
    at = len(row)
    while at and row[at - 1][0] > number:
        at -= 1
    row.insert(at, (number, item))


@dataclass(slots=True)
class KeyQueue(Generic[ItemT]):
    """Those that wait, each with its number, and the arrivals of online and of offline ones."""

    waiting: Row[ItemT] = field(default_factory=deque)
    online: Arrivals = field(default_factory=Arrivals)
    offline: Arrivals = field(default_factory=Arrivals)

    def arrivals(self, offline: bool) -> Arrivals:
        """Of which class the next is expected; each keeps company with its own only."""
        return self.offline if offline else self.online

    @property
    def urgent(self) -> int:
        """How many of the first are not offline, or go before all others."""
        waiting = self.waiting
        if not waiting or waiting[-1][0][0] < OFFLINE_STEP:
            return len(waiting)
        return sum(number[0] < OFFLINE_STEP for number, _ in waiting)
