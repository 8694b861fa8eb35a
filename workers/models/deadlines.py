"""Until when the jobs of one model must have begun, and must have ended.

Decides, and knows no Redis. A job whose `expires` passes while it is prepared ends there and then,
or as soon as what runs now is sure to end later; and one whose timeout is shorter than any batch of
late is not run, as it would only cost a model process.
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

#: So many of the latest batches are looked at, none of them older than LEAST_AGE_S. With fewer,
#: as after a start, nothing is said: the first batches of a process are slow.
LEAST_BATCHES: Final = 20
LEAST_AGE_S: Final = 60.0
#: What the shortest of them took is told as half: an input may cost less than any before.
LEAST_SHARE: Final = 0.5


class LeastTime:
    """What a batch takes at the least, by those that have just run.

    Where nothing runs any more, because all were refused, what is known grows old and is forgotten,
    so that the next one is tried.
    """

    def __init__(self) -> None:
        self._took: deque[tuple[float, float]] = deque(maxlen=LEAST_BATCHES)

    def add(self, seconds: float, now: float) -> None:
        """A batch has run."""
        self._took.append((now, seconds))

    def forget(self) -> None:
        """A model process was started: what the old one took says nothing."""
        self._took.clear()

    def at(self, now: float) -> float:
        """Seconds that no batch of late came near; 0 while that is not known."""
        if len(self._took) < LEAST_BATCHES or self._took[0][0] < now - LEAST_AGE_S:
            return 0.0
        return min(seconds for _, seconds in self._took) * LEAST_SHARE


class Expiring:
    """The prepared jobs that have an `expires`.

    Attributes:
        next_at: when to look at them; never late, but too early where one has left meanwhile.
    """

    def __init__(self) -> None:
        self._items: dict[str, LeasedJob] = {}
        self.next_at = NEVER

    def add(self, job: LeasedJob) -> None:
        """The item waits for its batch."""
        self._items[job.token] = job
        self.next_at = min(self.next_at, job.expires_at)

    def forget(self, jobs: Iterable[LeasedJob]) -> None:
        """These wait no longer."""
        if not self._items:
            return
        for job in jobs:
            self._items.pop(job.token, None)
        if not self._items:
            self.next_at = NEVER

    def take(self, now: float) -> list[LeasedJob]:
        """Those whose time is over."""
        if now < self.next_at:
            return []
        over = [job for job in self._items.values() if job.expires_at <= now]
        for job in over:
            del self._items[job.token]
        self.next_at = min((job.expires_at for job in self._items.values()), default=NEVER)
        return over


class Deadlines:
    """The deadlines of one model's jobs.

    Args:
        model: the model, with its bounds for the timeouts of its jobs.

    Attributes:
        least_time: what its batches take at the least.
        ended: settlements of jobs that ended here, still to be said.
    """

    def __init__(self, model: ModelConfig) -> None:
        self.least_time = LeastTime()
        self.ended: list[Settlement] = []
        self._model = model
        self._expiring = Expiring()

    @property
    def next_at(self) -> float:
        """When a prepared job has to be looked at, though nothing happens."""
        return self._expiring.next_at

    def expires_too_soon(self, job: LeasedJob, replicas: Sequence[Replica]) -> bool:
        """Whether an item that comes now expires before it can begin; it then ends here.

        Else it is watched from now on, where it can expire at all.

        Args:
            job: the item.
            replicas: the model's processes.
        """
        if job.expires_at == NEVER:
            return False
        now = time.monotonic()
        if job.expires_at < self._free_at(replicas, now):
            why = f"{NOT_STARTED}: what runs now cannot have ended by then"
            self.ended.append(self.expired(job, why))
            return True
        self._expiring.add(job)
        return False

    def _free_at(self, replicas: Sequence[Replica], now: float) -> float:
        """When a process can take the next batch at the soonest, as far as is known; 0 is now."""
        least_s = self.least_time.at(now)
        started = [replica.batch.started_at for replica in replicas if replica.batch is not None]
        busy = least_s and started and len(started) == len(replicas)
        return min(started) + least_s if busy else 0.0

    def forget(self, jobs: Iterable[LeasedJob]) -> None:
        """These wait no longer."""
        self._expiring.forget(jobs)

    def expire(self, batcher: Batcher[LeasedJob], now: float) -> None:
        """End the prepared jobs that have not begun in time."""
        for job in self._expiring.take(now):
            if batcher.remove(job):
                self.ended.append(self.expired(job))

    def expired(self, job: LeasedJob, why: str = NOT_STARTED) -> Settlement:
        """The end of a job that was not run."""
        return failed(job, "expired", why)

    def keep_feasible(self, jobs: list[LeasedJob], least_s: float) -> list[LeasedJob]:
        """Those whose timeouts are not below what a batch takes; the rest ends here."""
        kept = []
        for job in jobs:
            limit = self.timeout_s(job)
            if limit >= least_s:
                kept.append(job)
                continue
            why = (
                f"the job was not run: its timeout of {limit:g} s cannot be met, as no batch of "
                f"late took less than {least_s / LEAST_SHARE:.3g} s"
            )
            self.ended.append(self.expired(job, why))
        return kept

    def timeout_s(self, job: LeasedJob) -> float:
        """How long the item may run."""
        return self.shortest_timeout_s((job,))

    def shortest_timeout_s(self, jobs: Iterable[LeasedJob]) -> float:
        """How long all of these items may run: the shortest of their timeouts."""
        asked = {job.message.timeout_s if job.message is not None else None for job in jobs}
        shortest = min(one or self._model.timeout_s for one in asked)
        return max(shortest, self._model.min_timeout_s)

    def timed_out(self, batch: Batch, now: float, trace: str) -> Settlement:
        """The end of a job that ran alone, as this batch, for longer than its timeout.

        Args:
            batch: the job.
            now: the time.
            trace: where its model process stood, if that is known.
        """
        job = batch.jobs[0]
        limit = self.timeout_s(job)
        ran = stages([0.0, (now - batch.started_at) * 1000, 0.0])
        return failed(
            job, "timeout",
            f"the job ran longer than its timeout of {limit:g} s; its model process was killed",
            traceback=trace, batch=1, timings=timings(job, ran),
        )  # fmt: skip
