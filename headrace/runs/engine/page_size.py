"""How much a run asks for at a time: the model's pace decides, as in headrace/client/window.py.

A quick model is asked for a thousand ends at a time, a slow one for one.
"""

from __future__ import annotations

import time
from typing import Final

from headrace.client.bulk import LOOKUP_JOBS

#: A round that takes less asks for more at a time, one that takes more for fewer.
QUICK_S: Final = 0.1
SLOW_S: Final = 0.5
#: All that is under way is looked at so often.
SWEEP_S: Final = 1.0


class AdaptivePageSize:
    """Says for how many ends the next round waits.

    Attributes:
        goal: that many.
        behind: all that was looked at last had ended, so that the next need not be waited for.
    """

    def __init__(self) -> None:
        self.goal = 1
        self.behind = False
        self._swept = self._began = time.monotonic()
        self._waited_s = 0.0

    def begin(self) -> None:
        """A round begins."""
        self._began = time.monotonic()

    def waited(self) -> bool:
        """The wait of the round is over; whether all is to be looked at this time."""
        now = time.monotonic()
        self._waited_s = now - self._began
        if now - self._swept < SWEEP_S:
            return False
        self._swept = now
        return True

    def read(self, ended: int, looked: int) -> None:
        """So many had ended, of those that were looked at."""
        self.behind = ended == looked
        if self._waited_s > SLOW_S:
            self.goal = max(1, self.goal // 2)
        elif ended >= self.goal and self._waited_s < QUICK_S:
            self.goal = min(LOOKUP_JOBS, self.goal * 4)
