"""How often model processes of one model may be lost and started anew. No processes, no clock.

A job that hangs or crashes costs a whole process, and loading the model again costs the device and
its neighbours. So in each worker a model has so many restarts a minute; beyond these it waits, with
its jobs safe in their queue, and says so.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 60.0


class RestartLimit:
    """The processes of one model that were lost of late.

    Args:
        most: how many in `WINDOW_S` are replaced at once.

    Attributes:
        lost: how many were lost in all.
    """

    def __init__(self, most: int) -> None:
        self.lost = 0
        self._most = most
        self._at: deque[float] = deque(maxlen=most)
        self._why = ""

    def add(self, now: float, why: str) -> None:
        """A loaded process was killed or has died; `why` also holds where it stood, if known."""
        self.lost += 1
        self._at.append(now)
        self._why = why

    def earliest_start(self, now: float) -> float:
        """When the next process may be started; `now` while there were few."""
        if len(self._at) < self._most:
            return now
        return max(now, self._at[0] + WINDOW_S)

    def reason(self, now: float) -> str:
        """What is to be said of a model whose processes are not started yet; else ""."""
        wait_s = self.earliest_start(now) - now
        if not wait_s:
            return ""
        return (
            f"restarting too often: {self._most} model processes were killed or died within "
            f"{WINDOW_S:g} s (max_restarts_per_minute: {self._most}); the next one is started in "
            f"{wait_s:.0f} s. The last one: {self._why}"
        )
