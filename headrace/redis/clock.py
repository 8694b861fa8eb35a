"""What time it is by Redis' clock, as far as its answers have told."""

from __future__ import annotations

import time
from typing import Final

US_PER_S: Final = 1_000_000
#: An answer may have been late. One that says more is believed at once, any after so many seconds.
BELIEVED_S: Final = 60.0


class RedisClock:
    """The one clock by which all hosts agree. This host's own, until an answer was heard."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._until = 0.0

    def heard(self, now_us: int) -> None:
        """An answer came; it was that late, or earlier."""
        now = time.monotonic()
        began_s = now_us / US_PER_S - now
        if self._began_s is None or began_s >= self._began_s or now > self._until:
            self._began_s, self._until = began_s, now + BELIEVED_S

    def now_s(self) -> float:
        """The time in seconds since 1970, less what the answers' ways took at the most."""
        return time.time() if self._began_s is None else time.monotonic() + self._began_s
