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
from workers.jobs.leased_job import NEVER, Batch, LeasedJob, Settlement, failed, stages, timings
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

    def add(self, item: LeasedJob) -> None:
        """The item waits for its batch."""
        self._items[item.token] = item
        self.next_at = min(self.next_at, item.expires_at)

    def left(self, items: Iterable[LeasedJob]) -> None:
        """These wait no longer."""
        if not self._items:
            return
        for item in items:
            self._items.pop(item.token, None)
        if not self._items:
            self.next_at = NEVER

    def take(self, now: float) -> list[LeasedJob]:
        """Those whose time is over."""
        if now < self.next_at:
            return []
        over = [item for item in self._items.values() if item.expires_at <= now]
        for item in over:
            del self._items[item.token]
        self.next_at = min((item.expires_at for item in self._items.values()), default=NEVER)
        return over


class Deadlines:
    """The deadlines of one model's jobs.

    Args:
        model: the model, with its bounds for the timeouts of its jobs.

    Attributes:
        least: what its batches take at the least.
        ended: settlements of jobs that ended here, still to be said.
    """

    def __init__(self, model: ModelConfig) -> None:
        self.least = LeastTime()
        self.ended: list[Settlement] = []
        self._model = model
        self._expiring = Expiring()

    @property
    def next_at(self) -> float:
        """When a prepared job has to be looked at, though nothing happens."""
        return self._expiring.next_at

    def hopeless(self, item: LeasedJob, replicas: Sequence[Replica]) -> bool:
        """Whether an item that comes now expires before it can begin; it then ends here.

        Else it is watched from now on, where it can expire at all.

        Args:
            item: the item.
            replicas: the model's processes.
        """
        if item.expires_at == NEVER:
            return False
        now = time.monotonic()
        if item.expires_at < self._free_at(replicas, now):
            why = f"{NOT_STARTED}: what runs now cannot have ended by then"
            self.ended.append(self.expired(item, why))
            return True
        self._expiring.add(item)
        return False

    def _free_at(self, replicas: Sequence[Replica], now: float) -> float:
        """When a process can take the next batch at the soonest, as far as is known; 0 is now."""
        least_s = self.least.at(now)
        started = [replica.batch.started_at for replica in replicas if replica.batch is not None]
        busy = least_s and started and len(started) == len(replicas)
        return min(started) + least_s if busy else 0.0

    def left(self, items: Iterable[LeasedJob]) -> None:
        """These wait no longer."""
        self._expiring.left(items)

    def expire(self, batcher: Batcher[LeasedJob], now: float) -> None:
        """End the prepared jobs that have not begun in time."""
        for item in self._expiring.take(now):
            if batcher.remove(item):
                self.ended.append(self.expired(item))

    def expired(self, item: LeasedJob, why: str = NOT_STARTED) -> Settlement:
        """The end of a job that was not run."""
        return failed(item, "expired", why)

    def in_time(self, items: list[LeasedJob], least_s: float) -> list[LeasedJob]:
        """Those whose timeouts are not below what a batch takes; the rest ends here."""
        kept = []
        for item in items:
            limit = self.timeout_s(item)
            if limit >= least_s:
                kept.append(item)
                continue
            why = (
                f"the job was not run: its timeout of {limit:g} s cannot be met, as no batch of "
                f"late took less than {least_s / LEAST_SHARE:.3g} s"
            )
            self.ended.append(self.expired(item, why))
        return kept

    def timeout_s(self, item: LeasedJob) -> float:
        """How long the item may run."""
        return self.shortest_s((item,))

    def shortest_s(self, items: Iterable[LeasedJob]) -> float:
        """How long all of these items may run: the shortest of their timeouts."""
        asked = {item.message.timeout_s if item.message is not None else None for item in items}
        shortest = min(one or self._model.timeout_s for one in asked)
        return max(shortest, self._model.min_timeout_s)

    def timed_out(self, batch: Batch, now: float, trace: str) -> Settlement:
        """The end of a job that ran alone, as this batch, for longer than its timeout.

        Args:
            batch: the job.
            now: the time.
            trace: where its model process stood, if that is known.
        """
        item = batch.items[0]
        limit = self.timeout_s(item)
        ran = stages([0.0, (now - batch.started_at) * 1000, 0.0])
        return failed(
            item, "timeout",
            f"the job ran longer than its timeout of {limit:g} s; its model process was killed",
            traceback=trace, batch=1, timings=timings(item, ran),
        )  # fmt: skip
