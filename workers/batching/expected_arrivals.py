"""Jobs that are known to come, because the last claim had room for them and left them in Redis.

A claim takes a limited number of bytes, which is less than a batch if inputs are large. The jobs
that it left are claimed at once and arrive a round trip later. A batch is held for them if that is
worth the round trip, whatever the age of its items, while Redis is connected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.redis.keys import STEPS
from workers.batching.batcher import Batcher


@dataclass(slots=True)
class ExpectedArrivals:
    """What the last claim of one model has left in Redis."""

    _room: Sequence[int] = ()
    _place: int | None = None
    _trip_s: float = 0.0
    _taken: int = 0
    _at: float = 0.0

    def claim_sent(self, room: Sequence[int], now: float) -> None:
        """Note that a claim was sent, with this room for jobs of each step and all better steps."""
        self._room, self._at = room, now

    def claim_answered(self, taken: int, counts: Sequence[int], now: float) -> None:
        """Note that the claim took `taken` jobs, and how many it left at each step."""
        left = [taken < most and some > 0 for most, some in zip(self._room, counts, strict=False)]
        self._place = left.index(True) if taken and any(left) else None
        self._taken, self._trip_s, self._at = taken, now - self._at, now

    def connection_lost(self) -> None:
        """Expect no arrivals, because Redis is away."""
        self._place = None

    def hold_until(self, batcher: Batcher[Any], room: Sequence[int], now: float) -> float | None:
        """Return until when the prepared jobs should wait for expected ones; None for not at all.

        Args:
            batcher: the prepared jobs.
            room: how many more jobs of each step and all better steps fit.
            now: the current time.
        """
        place, policy = self._place, batcher.policy
        if place is None or not len(batcher) or batcher.isolated:
            return None
        if policy.keyed or policy.max_batch_cost is not None:
            return None
        if not batcher.online:
            size = len(batcher)
        elif place == len(STEPS) - 1:
            return None  # online jobs do not wait for offline ones
        else:
            size = batcher.online
        if not room[place]:
            return None  # they are not claimed
        claims = -(-room[place] // self._taken)
        worth_s = batcher.latency_model.worth_s(size) if size < policy.max_batch_size else 0.0
        # Ski-rental rule for a late claim: wait only while the expected saving exceeds the time
        # that was waited already.
        until = self._at + worth_s
        return until if self._trip_s * claims < worth_s and now < until else None
