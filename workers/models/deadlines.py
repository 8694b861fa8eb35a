"""Deadlines of one model's jobs: until when they must begin, and how long they may run.

A prepared job ends as expired when its `expires` passes, or as soon as the running batches are sure
to end later. A job whose timeout is shorter than any recent batch is not run, because it would only
cost a model process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from headrace.config.model_catalog import ModelConfig
from headrace.errors import NOT_STARTED
from workers.batching.batcher import Batcher
from workers.jobs.batch import Batch
from workers.jobs.leased_job import NEVER, LeasedJob
from workers.jobs.settlement import Settlement, failed, stages, timings
from workers.replicas.replica import Replica

#: How many of the latest batches count, and their maximum age. With fewer batches there is no
#: estimate, because the first batches of a process are slow.
LEAST_BATCHES: Final = 20
LEAST_AGE_S: Final = 60.0
#: The share of the shortest batch that is the estimate: an input may cost less than any before it.
LEAST_SHARE: Final = 0.5


class LeastTime:
    """The least time that a batch takes, estimated from recent batches.

    If no batch runs because all jobs were refused, the estimate expires and the next batch runs.
    """

    def __init__(self) -> None:
        self._took: deque[tuple[float, float]] = deque(maxlen=LEAST_BATCHES)

    def add(self, seconds: float, now: float) -> None:
        """Add a batch that has run."""
        self._took.append((now, seconds))

    def forget(self) -> None:
        """Discard the estimate, because a new model process may be faster."""
        self._took.clear()

    def at(self, now: float) -> float:
        """Return the estimate in seconds; 0 while it is unknown."""
        if len(self._took) < LEAST_BATCHES or self._took[0][0] < now - LEAST_AGE_S:
            return 0.0
        return min(seconds for _, seconds in self._took) * LEAST_SHARE


class Expiring:
    """The prepared jobs that have an `expires`.

    Attributes:
        next_at: when the first of them expires; may be too early, never too late.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, LeasedJob] = {}
        self.next_at = NEVER

    def add(self, job: LeasedJob) -> None:
        """Watch a job that was added to the batcher."""
        self._jobs[job.token] = job
        self.next_at = min(self.next_at, job.expires_at)

    def forget(self, jobs: Iterable[LeasedJob]) -> None:
        """Stop watching jobs that have left the batcher."""
        if not self._jobs:
            return
        for job in jobs:
            self._jobs.pop(job.token, None)
        if not self._jobs:
            self.next_at = NEVER

    def take(self, now: float) -> list[LeasedJob]:
        """Return the jobs that have expired, and stop watching them."""
        if now < self.next_at:
            return []
        expired = [job for job in self._jobs.values() if job.expires_at <= now]
        for job in expired:
            del self._jobs[job.token]
        self.next_at = min((job.expires_at for job in self._jobs.values()), default=NEVER)
        return expired


class Deadlines:
    """The deadlines of one model's jobs.

    Args:
        config: the model, with the limits of its jobs' timeouts.

    Attributes:
        least_time: the least time that its batches take.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.least_time = LeastTime()
        self._config = config
        self._expiring = Expiring()
        self._ended: list[Settlement] = []

    @property
    def next_at(self) -> float:
        """When `expire` must be called next."""
        return self._expiring.next_at

    @property
    def ended(self) -> bool:
        """Whether `take_ended` has settlements to return."""
        return bool(self._ended)

    def take_ended(self) -> list[Settlement]:
        """Return the settlements of the jobs that ended here since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def expires_too_soon(self, job: LeasedJob, replicas: Sequence[Replica]) -> bool:
        """End a job that will expire before a replica is free; watch any other job's `expires`.

        Returns:
            Whether the job has ended.
        """
        if job.expires_at == NEVER:
            return False
        now = time.monotonic()
        if job.expires_at < self._free_at(replicas, now):
            why = f"{NOT_STARTED}: the running batches end later"
            self._ended.append(self.expired(job, why))
            return True
        self._expiring.add(job)
        return False

    def _free_at(self, replicas: Sequence[Replica], now: float) -> float:
        """Return when a replica can take the next batch at the earliest; 0 for now."""
        least_s = self.least_time.at(now)
        started = [replica.batch.started_at for replica in replicas if replica.batch is not None]
        busy = least_s and started and len(started) == len(replicas)
        return min(started) + least_s if busy else 0.0

    def forget(self, jobs: Iterable[LeasedJob]) -> None:
        """Stop watching jobs that have left the batcher."""
        self._expiring.forget(jobs)

    def expire(self, batcher: Batcher[LeasedJob], now: float) -> None:
        """End the prepared jobs that have expired."""
        for job in self._expiring.take(now):
            if batcher.remove(job):
                self._ended.append(self.expired(job))

    def expired(self, job: LeasedJob, why: str = NOT_STARTED) -> Settlement:
        """Return the settlement of a job that expired before it ran."""
        return failed(job, "expired", why)

    def keep_feasible(self, jobs: list[LeasedJob], least_s: float) -> list[LeasedJob]:
        """Return the jobs whose timeout is at least `least_s`; end the others."""
        kept = []
        for job in jobs:
            limit = self.timeout_s(job)
            if limit >= least_s:
                kept.append(job)
                continue
            why = (
                f"the job was not run: its timeout of {limit:g} s cannot be met, no recent batch "
                f"took less than {least_s / LEAST_SHARE:.3g} s"
            )
            self._ended.append(self.expired(job, why))
        return kept

    def timeout_s(self, job: LeasedJob) -> float:
        """Return how long the job may run, in seconds."""
        return self.shortest_timeout_s((job,))

    def shortest_timeout_s(self, jobs: Iterable[LeasedJob]) -> float:
        """Return how long a batch of these jobs may run: the shortest of their timeouts."""
        timeouts = {job.message.timeout_s if job.message is not None else None for job in jobs}
        shortest = min(timeout or self._config.timeout_s for timeout in timeouts)
        return max(shortest, self._config.min_timeout_s)

    def timed_out(self, batch: Batch, now: float, trace: str) -> Settlement:
        """Return the settlement of a job that ran alone in this batch and exceeded its timeout.

        Args:
            batch: the batch of one job.
            now: the current time.
            trace: the stacks of the model process; empty if unknown.
        """
        job = batch.jobs[0]
        limit = self.timeout_s(job)
        ran = stages([0.0, (now - batch.started_at) * 1000, 0.0])
        return failed(
            job, "timeout",
            f"the job ran longer than its timeout of {limit:g} s; its model process was killed",
            traceback=trace, batch=1, timings=timings(job, ran),
        )  # fmt: skip
