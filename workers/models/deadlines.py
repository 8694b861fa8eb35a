"""Deadlines of a model's jobs: until when they must begin, and how long they may run.

A prepared job ends as expired when its `expires` passes, or as soon as the running batches are sure
to end later. A job whose timeout is shorter than any recent batch is not run, because it would only
cost a model process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from headrace.config.model.catalog import ModelConfig
from headrace.errors import NOT_STARTED
from workers.batching.batcher import Batcher
from workers.batching.estimates import LEAST_SHARE, LeastTime
from workers.jobs.leased_job import NEVER, Batch, LeasedJob
from workers.jobs.settlement import Settlement, failed, unfinished
from workers.replicas.replica import Replica


class Deadlines:
    """The deadlines of a model's jobs.

    Attributes:
        least_time: the least time that its batches take.
        next_at: when `expire` must be called; may be too early, never too late.
        ended: the settlements of the jobs that ended here.
    """

    def __init__(self, config: ModelConfig, batcher: Batcher[LeasedJob]) -> None:
        self.least_time = LeastTime()
        self.next_at = NEVER
        self.ended: list[Settlement] = []
        self._config = config
        self._batcher = batcher
        # The prepared jobs that have an `expires`, by token.
        self._expiring: dict[str, LeasedJob] = {}

    def take_ended(self) -> list[Settlement]:
        """Return the settlements of the jobs that ended here since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def expires_too_soon(self, job: LeasedJob, replicas: Sequence[Replica]) -> bool:
        """End a job that will expire before a replica is free; watch any other job's `expires`.

        Returns:
            Whether the job has ended.
        """
        if job.expires_at == NEVER:
            return False
        if job.expires_at < self._free_at(replicas, time.monotonic()):
            why = f"{NOT_STARTED}: the running batches end later"
            self.ended.append(failed(job, "expired", why))
            return True
        self._expiring[job.token] = job
        self.next_at = min(self.next_at, job.expires_at)
        return False

    def _free_at(self, replicas: Sequence[Replica], now: float) -> float:
        """Return when a replica can take the next batch at the earliest; 0 for now."""
        least_s = self.least_time.at(now)
        started = [
            replica.batch.started_at
            for replica in replicas
            if replica.batch is not None and not replica.joinable
        ]
        busy = least_s and started and len(started) == len(replicas)
        return min(started) + least_s if busy else 0.0

    def unwatch(self, jobs: Iterable[LeasedJob]) -> None:
        """Stop watching jobs that have left the batcher."""
        if not self._expiring:
            return
        for job in jobs:
            self._expiring.pop(job.token, None)
        if not self._expiring:
            self.next_at = NEVER

    def expire(self, now: float) -> None:
        """End the prepared jobs that have expired."""
        if now < self.next_at:
            return
        for job in [job for job in self._expiring.values() if job.expires_at <= now]:
            del self._expiring[job.token]
            if self._batcher.remove(job):
                self.ended.append(failed(job, "expired", NOT_STARTED))
        self.next_at = min((job.expires_at for job in self._expiring.values()), default=NEVER)

    def keep_feasible(self, jobs: list[LeasedJob], least_s: float) -> list[LeasedJob]:
        """Return the jobs whose timeout is at least `least_s`; end the others."""
        kept = []
        for job in jobs:
            limit = self.timeout_s((job,))
            if limit >= least_s:
                kept.append(job)
                continue
            why = (
                f"the job was not run: its timeout of {limit:g} s cannot be met, no recent batch "
                f"took less than {least_s / LEAST_SHARE:.3g} s"
            )
            self.ended.append(failed(job, "expired", why))
        return kept

    def timeout_s(self, jobs: Iterable[LeasedJob]) -> float:
        """Return how long a batch of these jobs may run: the shortest of their timeouts."""
        timeouts = {job.message.timeout_s if job.message is not None else None for job in jobs}
        shortest = min(timeout or self._config.timeout_s for timeout in timeouts)
        return max(shortest, self._config.min_timeout_s)

    def timed_out(
        self, batch: Batch, now: float, trace: str = "", *, killed: bool = True
    ) -> Settlement:
        """Return the settlement of a job that ran alone in this batch and exceeded its timeout.

        Args:
            now: when its end was seen.
            trace: the stacks of the model process; empty if they are unknown.
            killed: the process was killed; else the job has left a generator, which runs on.
        """
        job = batch.jobs[0]
        limit = self.timeout_s((job,))
        run = unfinished(job, batch, now)
        end = "its model process was killed" if killed else "it was stopped, and other jobs run on"
        return failed(
            job, "timeout", f"the job ran longer than its timeout of {limit:g} s; {end}",
            traceback=trace, batch=1, timings=run.timings, began=(run.began, run.device_wait),
        )  # fmt: skip
