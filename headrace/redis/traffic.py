"""Counters of the traffic between one process and Redis.

They are global, like a log: connections are made in many places. The metrics of the process take
and reset them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Fields of `hr:stats:`; a colon and the part of the system follow.
ROUND_TRIPS: Final = "redis_round_trips"
ERRORS: Final = "redis_errors"


@dataclass(slots=True)
class Traffic:
    """Counts since the last `take`.

    Attributes:
        round_trips: writes to Redis, of any number of commands each.
        errors: exchanges that failed: a connection was lost, or Redis refused a command.
    """

    round_trips: int = 0
    errors: int = 0

    def take(self, part: str) -> dict[str, int]:
        """Return the counts as fields of `hr:stats:`, and reset them; part: `api` or `worker`."""
        taken = {f"{ROUND_TRIPS}:{part}": self.round_trips, f"{ERRORS}:{part}": self.errors}
        # Counts that another thread adds meanwhile stay for the next call.
        self.round_trips -= taken[f"{ROUND_TRIPS}:{part}"]
        self.errors -= taken[f"{ERRORS}:{part}"]
        return {name: count for name, count in taken.items() if count}


TRAFFIC: Final = Traffic()
