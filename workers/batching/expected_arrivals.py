"""Jobs that are known to come: the last claim had room for them and ended before. Knows no Redis.

A claim takes so many bytes at the most, and so fewer jobs than a batch has where inputs are large.
What it has left is asked for at once and is here a round trip later. A batch is held for it as for
an arrival that is no guess, whatever the age of its items, where that is worth the round trip, and
for as long as there is a connection on which it can come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.redis.keys import STEPS
from workers.batching.batcher import Batcher


@dataclass(slots=True)
class ExpectedArrivals:
    """What the last claim of one model has left behind."""

    _rooms: Sequence[int] = ()
    _place: int | None = None
    _trip_s: float = 0.0
    _taken: int = 0
    _at: float = 0.0

    def claim_sent(self, rooms: Sequence[int], now: float) -> None:
        """A claim was sent, with room for so many jobs of each step and all better ones."""
        self._rooms, self._at = rooms, now

    def claim_answered(self, taken: int, lefts: Sequence[int], now: float) -> None:
        """It gave so many jobs, and says how many it has left of each step."""
        left = [taken < room and some > 0 for room, some in zip(self._rooms, lefts, strict=False)]
        self._place = left.index(True) if taken and any(left) else None
        self._taken, self._trip_s, self._at = taken, now - self._at, now

    def connection_lost(self) -> None:
        """Redis is away: whoever waits there comes nobody knows when."""
        self._place = None

    def hold_until(self, batcher: Batcher[Any], rooms: Sequence[int], now: float) -> float | None:
        """Until when what waits is to be held for who is known to come; None: not for anybody.

        Args:
            batcher: what waits, and what batches take.
            rooms: for how many more jobs of each step and all better ones there is room.
            now: the time.
        """
        place, policy = self._place, batcher.policy
        if place is None or not len(batcher) or batcher.isolated:
            return None
        if policy.keyed or policy.max_batch_cost is not None:
            return None
        if not batcher.online:
            size = len(batcher)
        elif place == len(STEPS) - 1:
            return None  # who is offline is no company for those who wait
        else:
            size = batcher.online
        if not rooms[place]:
            return None  # nobody is asked for
        claims = -(-rooms[place] // self._taken)
        worth_s = batcher.latency_model.worth_s(size) if size < policy.max_batch_size else 0.0
        # Should the claim be late: while the batch that it may still save is worth more than all
        # that was waited, as one who rents skis buys none before that.
        until = self._at + worth_s
        return until if self._trip_s * claims < worth_s and now < until else None
