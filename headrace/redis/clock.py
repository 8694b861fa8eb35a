"""The time by Redis' clock, estimated from its replies."""

from __future__ import annotations

import time
from typing import Final

US_PER_S: Final = 1_000_000
#: A reply may have been late. A later time is taken at once, any time after this many seconds.
VALID_S: Final = 60.0


class RedisClock:
    """The one clock on which all hosts agree; this host's own until the first reply."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._until = 0.0

    def update(self, now_us: int) -> None:
        """Take the time from a reply that has just arrived."""
        now = time.monotonic()
        began_s = now_us / US_PER_S - now
        if self._began_s is None or began_s >= self._began_s or now > self._until:
            self._began_s, self._until = began_s, now + VALID_S

    def now_s(self) -> float:
        """Return seconds since 1970; it may be behind by the latency of the replies."""
        return time.time() if self._began_s is None else time.monotonic() + self._began_s
