"""What happened to a model's replicas, and when a lost replica may be started again.

A lost process costs the device and its other models, because the model is loaded again. So each
worker restarts a model at most `max_restarts_per_minute` times. Beyond that the model waits, its
jobs stay in their queue, and the worker reports the reason.

A loss does not count once a job is known to be its cause. Each such job is charged or ends, so it
can cause few losses. So the jobs of one client cannot make the model wait for all others. But if
CAUSES_MAX such jobs follow each other and no batch finishes between them, the model itself counts
as broken. Then these losses count too; otherwise its whole queue would become dead letters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from headrace.observability import worker_report
from headrace.observability.worker_report import ModelStats

WINDOW_S: Final = 60.0
#: So many different jobs that crash in a row show that the model is broken, and not its inputs.
CAUSES_MAX: Final = 30


class ReplicaHistory:
    """The loads, losses and recycles of replicas; `limit` restarts at once within `WINDOW_S`."""

    def __init__(self, limit: int, stats: ModelStats) -> None:
        self.lost = self.recycled = 0
        self._stats = stats
        self._limit = limit
        # Losses without a known cause: when, and the jobs that the process had.
        self._unexplained: deque[tuple[float, frozenset[str]]] = deque(maxlen=limit)
        # Since a batch has finished: the jobs that caused losses, and when these were.
        self._causes: set[str] = set()
        self._explained: deque[float] = deque(maxlen=limit)
        self._why = ""
        self._last_error = ""

    def add_load(self, seconds: float) -> None:
        """Count a replica that has loaded in `seconds`."""
        self._stats.count(worker_report.LOADS)
        self._stats.count(worker_report.LOAD_S, seconds)

    def add_load_failure(self, traceback: str) -> bool:
        """Count a failed load; return whether the last one failed with the same traceback."""
        repeated, self._last_error = traceback == self._last_error, traceback
        self._stats.count(worker_report.LOAD_FAILURES)
        return repeated

    def add_loss(self, now: float, why: str, jobs: Iterable[str] = (), cause: str = "") -> None:
        """Count a loaded replica that was killed or has died.

        Args:
            why: the reason; may include its stacks.
            cause: the job that is surely the cause, of this loss and of earlier ones that had it.
        """
        self.lost += 1
        self._why = why
        if cause:
            others = [loss for loss in self._unexplained if cause not in loss[1]]
            self._unexplained = deque(others, self._limit)
            if len(self._causes) < CAUSES_MAX:
                self._causes.add(cause)
            self._explained.append(now)
        else:
            self._unexplained.append((now, frozenset(jobs)))
        self._stats.count(f"{worker_report.RESTARTS}:lost")

    def add_recycle(self) -> None:
        """Count a replica that is replaced because of `max_jobs` or `max_memory_mb`."""
        self.recycled += 1
        self._stats.count(f"{worker_report.RESTARTS}:recycled")

    def add_batch(self) -> None:
        """Note that a batch has finished: the model works."""
        if self._causes:
            self._causes.clear()
            self._explained.clear()

    def restart_at(self, now: float) -> float:
        """Return when the next replica may start; `now` if few were lost."""
        losses = [at for at, _ in self._unexplained]
        if len(self._causes) == CAUSES_MAX:
            losses = sorted([*losses, *self._explained])
        if len(losses) < self._limit:
            return now
        return max(now, losses[-self._limit] + WINDOW_S)

    def wait_reason(self, now: float) -> str:
        """Return why lost replicas are not started yet; empty if they may start."""
        wait_s = self.restart_at(now) - now
        if not wait_s:
            return ""
        return (
            f"restarting too often: {self._limit} model processes were killed or died within "
            f"{WINDOW_S:g} s, and no single job is the cause (max_restarts_per_minute: "
            f"{self._limit}). So the next one starts in {wait_s:.0f} s. The last one: {self._why}"
        )
