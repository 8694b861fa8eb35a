"""What one process has exchanged with Redis, counted where it is done.

Plain numbers of the process, as its log is one: the connections are made in many places, and each
would have to be told where to count. Whoever reports for the process takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Fields of `hr:stats:`, with the part of the system behind a colon.
ROUND_TRIPS: Final = "redis_round_trips"
ERRORS: Final = "redis_errors"


@dataclass(slots=True)
class Traffic:
    """Counts since the last `take`.

    Attributes:
        round_trips: writes to Redis, with however many commands in each.
        errors: exchanges that failed: a connection was lost, or Redis refused a command.
    """

    round_trips: int = 0
    errors: int = 0

    def take(self, part: str) -> dict[str, int]:
        """Take the counts, as fields of `hr:stats:` for this part: `api` or `worker`."""
        taken = {f"{ROUND_TRIPS}:{part}": self.round_trips, f"{ERRORS}:{part}": self.errors}
        # What is added while this runs, by another thread, stays for the next time.
        self.round_trips -= taken[f"{ROUND_TRIPS}:{part}"]
        self.errors -= taken[f"{ERRORS}:{part}"]
        return {name: count for name, count in taken.items() if count}


TRAFFIC: Final = Traffic()
