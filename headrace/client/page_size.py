"""How many jobs one round of lookups covers, adapted to the speed of the model.

A round waits for the end of one job. The job is chosen so that about `goal` jobs have ended by
then. The round then looks up several jobs in one request. The goal is large for a fast model and 1
for a slow one.
"""

from __future__ import annotations

import time
from typing import Final

#: A shorter wait increases the goal, a longer wait decreases it.
QUICK_S: Final = 0.1
SLOW_S: Final = 0.5
#: All jobs in flight are looked up once per this many seconds.
SWEEP_S: Final = 1.0


class AdaptivePageSize:
    """Decides for how many ended jobs the next round waits.

    Attributes:
        goal: the number of ended jobs to wait for.
        behind: all jobs of the last lookup had ended, so the next round need not wait.
    """

    def __init__(self, *, growth: int, most: int) -> None:
        self.goal = 1
        self.behind = False
        self._growth = growth
        self._most = most
        self._swept = self._started = time.monotonic()
        self._waited_s = 0.0
        self._sweeping = False

    def begin(self) -> None:
        """Start a round."""
        self._started = time.monotonic()

    def waited(self) -> bool:
        """End the round's wait; return whether this round looks up all jobs in flight."""
        now = time.monotonic()
        self._waited_s = now - self._started
        self._sweeping = now - self._swept > SWEEP_S
        return self._sweeping

    def read(self, ended: int, looked: int, *, waited: bool = True) -> None:
        """End the round: `ended` of `looked` jobs had ended."""
        self.behind = ended == looked
        if self._sweeping:
            self._swept = time.monotonic()
        if self._waited_s > SLOW_S or (not waited and ended < self.goal):
            self.goal = max(1, self.goal // 2)
        elif ended >= self.goal and self._waited_s < QUICK_S:
            self.goal = min(self._most, self.goal * self._growth)
