"""How many offline requests have a part in a step while online requests come.

A request that comes waits for the step that runs, so steps must be short while online requests may
come. Offline requests take the rest of a short step. The time of a step depends on the model, the
device and the other requests, so it is measured: a step that was too long lowers the number, and
one that was shorter raises it. Does no I/O and reads no clock.
"""

from __future__ import annotations

from typing import Final

#: For how long after an online request more of them may come, in seconds.
ONLINE_S: Final = 5.0
#: The share of an online request's time to its first piece that a step may take.
STEP_SHARE: Final = 0.25
#: The time of a step that is short enough for any request, in seconds.
SHORT_S: Final = 0.005
#: How many requests one step raises or lowers the number at most.
_CHANGE_MAX: Final = 0.5
#: The weight of the newest first piece.
_NEWEST_WEIGHT: Final = 1 / 8


class OfflineLimit:
    """The limit of one generator; it holds while online requests come."""

    def __init__(self) -> None:
        self._online_until = float("-inf")
        self._count = 1.0
        self._first_s = 0.0

    def online_came(self, now: float) -> None:
        """Note that an online request runs or has come."""
        self._online_until = now + ONLINE_S

    def first_piece(self, seconds: float) -> None:
        """Note the time from when an online request joined to its first piece."""
        weight = _NEWEST_WEIGHT if self._first_s else 1.0
        self._first_s += weight * (seconds - self._first_s)

    @property
    def step_s(self) -> float:
        """How long a step should take at most while online requests come."""
        return max(SHORT_S, STEP_SHARE * self._first_s)

    def stepped(self, seconds: float, offline: int, now: float) -> None:
        """Note how long a step took that so many offline requests had a part in."""
        most = self.most(now)
        if most is None:
            return
        change = (self.step_s - seconds) / self.step_s
        # A short step of fewer requests does not show that more fit.
        if change < 0 or offline >= most:
            self._count = max(1.0, self._count + _CHANGE_MAX * max(-1.0, min(1.0, change)))

    def most(self, now: float) -> int | None:
        """Return how many offline requests may have a part in a step; None for all."""
        return int(self._count) if now < self._online_until else None
