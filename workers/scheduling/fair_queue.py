"""The turns of several names on a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class FairQueue:
    """The turns on a device, by weighted shares of its time. Reads no clock.

    This is start-time fair queueing (Goyal, Vin and Cheng, 1996). Each name has a virtual time,
    which advances by seconds of use over weight, and the name that is furthest behind has the next
    turn. Deficit round robin must know how long a batch takes before it runs; here the time is
    charged when the batch has ended. A name that wanted nothing for a while continues at the time
    of the others, so it saves up no credit.

    Attributes:
        weights: the share of each name, relative to the others.
        slots: how many batches may run at once.
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
        """Whether one more batch may run."""
        return self._running < self.slots

    def order(self, wanting: Iterable[str]) -> list[str]:
        """Return these names in the order of their turns.

        Among names that are equally far behind, the name that has waited longest is first.
        """
        return sorted(wanting, key=lambda name: (self._start(name), self._began.get(name, 0)))

    def behind(self, name: str, other: str, seconds: float) -> bool:
        """Return whether `other` is next once `name` is charged for `seconds` more."""
        used = self._start(name) + seconds / self.weights[name]
        return self._start(other) < used

    def begin(self, name: str) -> None:
        """Give a name its turn and a slot."""
        self._turn += 1
        self._running += 1
        self._began[name] = self._turn
        self._now = self._used[name] = self._start(name)

    def end(self, name: str, seconds: float) -> None:
        """Take the slot back, and charge the name for `seconds` of the device."""
        self._running -= 1
        self._used[name] += seconds / self.weights[name]

    def pass_on(self, name: str, seconds: float, to: str, waiting: Iterable[str]) -> None:
        """Charge a name for `seconds`, and give its slot to `to`, which need not be next.

        The names that are waiting keep how far they are behind.
        """
        self._used[name] += seconds / self.weights[name]
        self._turn += 1
        self._began[to] = self._turn
        self._used[to] = self._start(to)
        self._now = max(self._now, min(map(self._start, [to, *waiting])))

    def remove(self, name: str) -> None:
        """Remove a name of which nothing runs."""
        self._used.pop(name, None)
        self._began.pop(name, None)

    def _start(self, name: str) -> float:
        return max(self._used.get(name, 0.0), self._now)
