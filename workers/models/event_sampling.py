"""Choosing the jobs for which Celery task events are sent: all, none, or a sample per second.

An event costs the worker more than the rest of a small job, and Flower more than that. So by
default all jobs get events up to a rate, and beyond it a sample of each batch does. Jobs that
failed, were cancelled or are tried again have a rate of their own, because operators look for them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from headrace.observability.worker_report import UNTOLD, ModelStats
from workers.jobs.leased_job import LeasedJob

logger = logging.getLogger(__name__)

#: How many seconds' worth of jobs may get events at once, so that small loads are shown whole.
BURST_S: Final = 10.0


class TokenBucket:
    """A rate of `per_s` tokens a second, of which `BURST_S` seconds' worth may be saved up."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s * BURST_S)
        self._left = self._most
        self._at = 0.0

    def take(self, count: int, now: float) -> int:
        """Take `count` tokens or as many as are left; return how many were taken."""
        if self._at:
            self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        taken = min(count, int(self._left))
        self._left -= taken
        return taken


class EventSampler:
    """Chooses the jobs of one model for which one worker sends events.

    Args:
        model: its name.
        mode: its `events` in the models file: true, false or "sampled".
        per_s: jobs a second that get events when they are sampled; the same number again of jobs
            that end badly or are tried again.
        stats: counts the omitted jobs.

    Attributes:
        omitted: how many jobs got no events since the worker started.
    """

    def __init__(self, model: str, mode: bool | str, per_s: float, stats: ModelStats) -> None:
        self.mode = mode
        self.omitted = 0
        self._model = model
        self._per_s = per_s
        self._stats = stats
        self._plain, self._notable = TokenBucket(per_s), TokenBucket(per_s)

    def sample(self, jobs: Sequence[LeasedJob], now: float) -> Sequence[LeasedJob]:
        """Return the jobs of a batch that get events when it begins, in their order."""
        if self.mode is True or not jobs:
            return jobs
        if self.mode is False:
            return ()
        count = self._plain.take(len(jobs), now)
        if count == len(jobs):
            return jobs
        # Spread evenly over the batch: the middle job of each of `count` equal parts.
        chosen = {(2 * n + 1) * len(jobs) // (2 * count) for n in range(count)}
        for place, job in enumerate(jobs):
            if job.attempts > 1 and place not in chosen and self.take_notable(now):
                chosen.add(place)
        return [jobs[place] for place in sorted(chosen)]

    def take_notable(self, now: float) -> bool:
        """Return whether a job outside the sample gets events because operators look for it."""
        return self.mode is True or (bool(self.mode) and self._notable.take(1, now) == 1)

    def count_omitted(self, count: int) -> None:
        """Count jobs that ended without events although a monitor had requested events."""
        if self.mode is False or not count:
            return
        if not self.omitted:
            logger.info(
                "task events are sampled above %g jobs a second; set `events` in the models file "
                "to change this", self._per_s, extra={"model": self._model},
            )  # fmt: skip
        self.omitted += count
        self._stats.count(UNTOLD, count)

    def report(self) -> dict[str, bool | str | int]:
        """Return the mode and the count as `inspect stats` shows them."""
        return {"events": self.mode, "events_left_out": self.omitted}
