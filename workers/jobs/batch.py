"""A batch: the jobs that run together on one replica."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.redis.keys import OFFLINE_STEP
from workers.jobs.leased_job import LeasedJob


@dataclass(slots=True)
class Batch:
    """Jobs that run together on one replica.

    Attributes:
        reason: why it was dispatched, one of `workers.batching.batcher.Reason`.
        started_at: when it was dispatched; for a staged batch, when the batch before it ended.
        deadline: when the shortest timeout of its jobs ends.
        seq: its number on the frame socket.
        id: its name in logs and traces.
        traced: some of its jobs may belong to a trace.
        span: the `traceparent` of its own span; empty without one.
    """

    jobs: list[LeasedJob]
    reason: str
    started_at: float
    deadline: float
    seq: int = 0
    id: str = ""
    traced: bool = False
    span: str = ""

    @property
    def traces(self) -> dict[str, str]:
        """The `traceparent` with which each job was submitted, by job id."""
        return {
            job.id: job.message.trace.parent
            for job in self.jobs
            if job.message is not None and job.message.trace is not None
        }

    @property
    def offline(self) -> bool:
        """Whether all of its jobs have the offline priority."""
        return all(job.step == OFFLINE_STEP for job in self.jobs)

    def begin(self, now: float) -> None:
        """Restart the clock of a staged batch when the batch before it ends."""
        self.deadline += now - self.started_at
        self.started_at = now
