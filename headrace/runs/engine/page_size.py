"""The adaptive number of outcomes that a run reads in one round.

A round for a fast model reads a thousand outcomes, one for a slow model a single outcome. The
client's `map` adapts in the same way (headrace/client).
"""

from __future__ import annotations

import time
from typing import Final

from headrace.client.bulk import LOOKUP_JOBS

#: A shorter wait makes the page larger, a longer one smaller.
QUICK_S: Final = 0.1
SLOW_S: Final = 0.5
#: Seconds between two reads of everything in flight.
SWEEP_S: Final = 1.0


class AdaptivePageSize:
    """How many outcomes the next round waits for.

    Attributes:
        goal: that number.
        behind: everything in the last round had ended, so the next one need not wait.
    """

    def __init__(self) -> None:
        self.goal = 1
        self.behind = False
        self._swept = self._began = time.monotonic()
        self._waited_s = 0.0

    def begin(self) -> None:
        """Begin a round."""
        self._began = time.monotonic()

    def waited(self) -> bool:
        """End the wait of the round; return whether it reads everything in flight."""
        now = time.monotonic()
        self._waited_s = now - self._began
        if now - self._swept < SWEEP_S:
            return False
        self._swept = now
        return True

    def read(self, ended: int, looked_up: int) -> None:
        """Adapt: `ended` of the `looked_up` jobs had ended."""
        self.behind = ended == looked_up
        if self._waited_s > SLOW_S:
            self.goal = max(1, self.goal // 2)
        elif ended >= self.goal and self._waited_s < QUICK_S:
            self.goal = min(LOOKUP_JOBS, self.goal * 4)
