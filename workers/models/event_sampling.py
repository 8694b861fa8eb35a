"""Which jobs of a model monitors are told of: all, none, or as many a second as they can read.

An event costs the worker more than the rest of a small job does, and Flower more than that. So by
default a model's jobs are told of up to a rate, and beyond it a sample is: spread over each batch,
and beside it what somebody may look for, which is what failed or was cancelled, and later attempts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from headrace.observability.worker_report import UNTOLD, ModelStats
from workers.jobs.leased_job import LeasedJob

logger = logging.getLogger(__name__)

#: How many seconds' worth of jobs may be told of at once, so that small loads are seen whole.
BURST_S: Final = 10.0


class TokenBucket:
    """So many a second, and `BURST_S` seconds' worth at once."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s * BURST_S)
        self._left = self._most
        self._at = 0.0

    def take(self, count: int, now: float) -> int:
        """Take so many, or as many as there are; how many that was."""
        if self._at:
            self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        taken = min(count, int(self._left))
        self._left -= taken
        return taken


class EventSampler:
    """What monitors are told of one model, by one worker.

    Args:
        model: its name.
        mode: its `events` in the models file: true, false or "sampled".
        per_s: how many jobs a second are told of where they are sampled; as many again of those
            that end badly or are tried again.
        stats: where the jobs that were left out are counted.

    Attributes:
        omitted: how many jobs were left out since the worker started.
    """

    def __init__(self, model: str, mode: bool | str, per_s: float, stats: ModelStats) -> None:
        self.mode = mode
        self.omitted = 0
        self._model = model
        self._per_s = per_s
        self._stats = stats
        self._plain, self._notable = TokenBucket(per_s), TokenBucket(per_s)

    def sample(self, jobs: Sequence[LeasedJob], now: float) -> Sequence[LeasedJob]:
        """Of the jobs of a batch that begins, those that are to be told of, in their order."""
        if self.mode is True or not jobs:
            return jobs
        if self.mode is False:
            return ()
        count = self._plain.take(len(jobs), now)
        if count == len(jobs):
            return jobs
        # The middle ones of so many equal stretches.
        chosen = {(2 * n + 1) * len(jobs) // (2 * count) for n in range(count)}
        for place, job in enumerate(jobs):
            if job.attempts > 1 and place not in chosen and self.take_notable(now):
                chosen.add(place)
        return [jobs[place] for place in sorted(chosen)]

    def take_notable(self, now: float) -> bool:
        """Whether to tell of one that was not chosen and that somebody may look for."""
        return self.mode is True or (bool(self.mode) and self._notable.take(1, now) == 1)

    def count_omitted(self, count: int) -> None:
        """So many jobs have ended of which nothing was told though a monitor had asked for it."""
        if self.mode is False or not count:
            return
        if not self.omitted:
            logger.info(
                "of more than %g jobs a second monitors get a sample; `events` in the models file "
                "changes that", self._per_s, extra={"model": self._model},
            )  # fmt: skip
        self.omitted += count
        self._stats.count(UNTOLD, count)

    def report(self) -> dict[str, bool | str | int]:
        """As `inspect stats` shows it."""
        return {"events": self.mode, "events_left_out": self.omitted}
