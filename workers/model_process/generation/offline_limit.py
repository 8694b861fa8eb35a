"""How many offline requests run in a step while online requests come.

A request that comes waits for the step that runs, so steps must be short while online requests may
come. Offline requests take the rest of a short step. The time of a step depends on the model, the
device and the other requests, so it is measured. A step that was too long lowers the number, and
one that was shorter raises it. Does no I/O and reads no clock.

Some models take long for any step. Fewer offline requests would not shorten it. So the time of a
step with one of them is measured too, and a step may take a little longer than that.
"""

from __future__ import annotations

from collections import deque
from typing import Final

#: For how long after an online request more of them may come, in seconds.
ONLINE_S: Final = 5.0
#: The share of an online request's time to its first piece that a step may take.
STEP_SHARE: Final = 0.25
#: The time of a step that is short enough for any request, in seconds.
SHORT_S: Final = 0.005
#: The share of the time of a step with one offline request that others may add.
MORE_SHARE: Final = 0.25
#: Of how many steps with one offline request the shortest counts.
ALONE_STEPS: Final = 8
#: After so many steps with more of them comes one with one, to measure it again.
MEASURE_EVERY: Final = 64
#: How many requests one step raises or lowers the number at most.
_CHANGE_MAX: Final = 0.5
#: How much of that at most, if a step with one request shows nothing of the time for others.
_ALONE_CHANGE: Final = 0.1
#: The weight of the newest first piece.
_NEWEST_WEIGHT: Final = 1 / 8


class OfflineLimit:
    """The limit of one generator; it holds while online requests come."""

    def __init__(self) -> None:
        self._online_until = float("-inf")
        self._count = 1.0
        self._first_s = 0.0
        # The times of the newest steps with one offline request, and how many steps came since.
        self._alone_s: deque[float] = deque(maxlen=ALONE_STEPS)
        self._since_alone = 0

    def online_came(self, now: float) -> None:
        """Note that an online request runs or has come."""
        self._online_until = now + ONLINE_S

    def first_piece(self, seconds: float) -> None:
        """Note the time from when an online request joined to its first piece."""
        weight = _NEWEST_WEIGHT if self._first_s else 1.0
        self._first_s += weight * (seconds - self._first_s)

    @property
    def _short_s(self) -> float:
        return max(SHORT_S, STEP_SHARE * self._first_s)

    @property
    def _least_s(self) -> float:
        """How long a step takes at least, with one offline request; 0 if that is unknown."""
        return min(self._alone_s, default=0.0)

    @property
    def step_s(self) -> float:
        """How long a step should take at most while online requests come."""
        return max(self._short_s, (1 + MORE_SHARE) * self._least_s)

    @property
    def _slow(self) -> bool:
        """Whether the time of a step with one offline request decides how long others may take."""
        return self.step_s > self._short_s

    @property
    def _measures(self) -> bool:
        """Whether the next step has one offline request, to measure it."""
        return self._slow and self._since_alone >= MEASURE_EVERY

    def stepped(self, seconds: float, offline: int, now: float) -> None:
        """Note how long a step took that so many offline requests ran in."""
        limit = self.at(now)
        if limit is None:
            return
        measured = self._measures
        self._since_alone += 1
        if offline <= 1 or measured:
            self._since_alone = 0
        if offline <= 1 or seconds < self._least_s:
            self._alone_s.append(seconds)
        if measured:
            return
        change = (self.step_s - seconds) / max(self._short_s, MORE_SHARE * self._least_s)
        if self._slow and offline <= 1:
            change = min(change, _ALONE_CHANGE)
        # A short step of fewer requests does not show that more fit.
        if change < 0 or offline >= limit:
            self._count = max(1.0, self._count + _CHANGE_MAX * max(-1.0, min(1.0, change)))

    def at(self, now: float) -> int | None:
        """Return how many offline requests may run in a step; None for all."""
        if now >= self._online_until:
            return None
        return 1 if self._measures else int(self._count)
