"""What happened to one model's replicas, and when a lost one may be started again.

A job that hangs or crashes costs a whole process, and loading the model again costs the device and
its other models. So each worker restarts a model at most `max_restarts_per_minute` times. Beyond
that the model waits, its jobs stay in their queue, and the worker reports the reason.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.observability import worker_report
from headrace.observability.worker_report import ModelStats

WINDOW_S: Final = 60.0


class ReplicaHistory:
    """The loads, losses and recycles of one model's replicas.

    Args:
        most: how many lost replicas are restarted at once within `WINDOW_S`.
        stats: counts the same for the metrics.

    Attributes:
        lost: how many replicas were lost in all.
        recycled: how many were recycled.
    """

    def __init__(self, most: int, stats: ModelStats) -> None:
        self.lost = self.recycled = 0
        self._stats = stats
        self._most = most
        self._lost_at: deque[float] = deque(maxlen=most)
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

    def add_loss(self, now: float, why: str) -> None:
        """Count a loaded replica that was killed or has died; `why` may include its stacks."""
        self.lost += 1
        self._lost_at.append(now)
        self._why = why
        self._stats.count(f"{worker_report.RESTARTS}:lost")

    def add_recycle(self) -> None:
        """Count a replica that is replaced because of `max_jobs` or `max_memory_mb`."""
        self.recycled += 1
        self._stats.count(f"{worker_report.RESTARTS}:recycled")

    def restart_at(self, now: float) -> float:
        """Return when the next replica may start; `now` if few were lost."""
        if len(self._lost_at) < self._most:
            return now
        return max(now, self._lost_at[0] + WINDOW_S)

    def wait_reason(self, now: float) -> str:
        """Return why lost replicas are not started yet; empty if they may start."""
        wait_s = self.restart_at(now) - now
        if not wait_s:
            return ""
        return (
            f"restarting too often: {self._most} model processes were killed or died within "
            f"{WINDOW_S:g} s (max_restarts_per_minute: {self._most}); the next one starts in "
            f"{wait_s:.0f} s. The last one: {self._why}"
        )
