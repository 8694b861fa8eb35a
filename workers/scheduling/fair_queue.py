"""Whose turn it is on a device: weighted shares of its time. No clock, no batches, no threads.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): each name has a virtual time, which its use
of the device moves on by seconds over weight, and the turn goes to the one that is furthest behind.
Plain deficit round robin wants to know what a batch takes before it runs; here it is charged when
it has ended. One that wanted nothing for a while takes up where the others are: it saves no credit
up, and is next unless it has used more than its share before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class FairQueue:
    """The turns on one device.

    Attributes:
        weights: the share of each name, against the others.
        slots: how many may run at once.
    """

    weights: Mapping[str, float]
    slots: int
    _used: dict[str, float] = field(default_factory=dict)
    _began: dict[str, int] = field(default_factory=dict)
    _now: float = 0.0
    _turn: int = 0
    _running: int = 0

    @property
    def free(self) -> bool:
        """Whether one more may run."""
        return self._running < self.slots

    def order(self, wanting: Iterable[str]) -> list[str]:
        """Those that want the device, whose turn it is first.

        Of several that are equally far behind, the one comes first that has waited longest.
        """
        return sorted(wanting, key=lambda name: (self._start(name), self._began.get(name, 0)))

    def behind(self, name: str, other: str, seconds: float) -> bool:
        """Whether the other's turn is next, once this one is charged for so many seconds more."""
        used = self._start(name) + seconds / self.weights[name]
        return self._start(other) < used

    def begin(self, name: str) -> None:
        """It takes its turn, and a slot."""
        self._turn += 1
        self._running += 1
        self._began[name] = self._turn
        self._now = self._used[name] = self._start(name)

    def end(self, name: str, seconds: float) -> None:
        """It gives its slot back, after so much time of the device."""
        self._running -= 1
        self._used[name] += seconds / self.weights[name]

    def _start(self, name: str) -> float:
        return max(self._used.get(name, 0.0), self._now)
