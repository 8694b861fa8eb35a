"""Delays between attempts to reach Redis."""

from __future__ import annotations

from typing import Final

MIN_S: Final = 0.05
MAX_S: Final = 2.0


class Backoff:
    """Delays in seconds that double from MIN_S to `max_s`."""

    def __init__(self, max_s: float = MAX_S) -> None:
        self._max_s = max_s
        self.reset()

    def reset(self) -> None:
        """Start again at MIN_S, after a success."""
        self._next_s = MIN_S

    def next_s(self) -> float:
        """Return the delay before the next attempt."""
        delay_s = self._next_s
        self._next_s = max(MIN_S, min(delay_s * 2, self._max_s))
        return delay_s
