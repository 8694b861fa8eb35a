"""Ended jobs of one model whose Celery callbacks must be sent before the job is settled.

`ServedModel` and `LeaseManager` fill it, and `workers.canvas.notifier` empties it. All run on the
consumer's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement

#: While this many jobs wait for their callbacks, nothing more is claimed.
NOTIFYING_MAX: Final = 256
#: The most orphaned ends that one sweep returns.
ORPHANED_MAX: Final = 100


class UnsentCallbacks(NamedTuple):
    """A job that has ended and has callbacks, with the settlement to send after these."""

    job: LeasedJob
    settlement: Settlement


class OrphanedEnd(NamedTuple):
    """The end of a job that a Redis script settled, so no worker has sent its callbacks.

    Attributes:
        queue: the job's queue.
        name: the name of the entry in the queue's list of such ends.
        entry: the entry, as `save_orphaned_end` in lib/canvas.lua writes it.
    """

    queue: str
    name: bytes
    entry: bytes


@dataclass(slots=True)
class PendingCallbacks:
    """The callbacks of one model's jobs.

    Attributes:
        linked: held jobs that have callbacks, by token.
        notifying: ended jobs whose callbacks have not been sent, by token.
        orphaned_pending: how many orphaned ends the notifier has not handled.
    """

    linked: dict[str, LeasedJob] = field(default_factory=dict)
    notifying: dict[str, LeasedJob] = field(default_factory=dict)
    orphaned_pending: int = 0
    _ends: list[UnsentCallbacks] = field(default_factory=list)
    _orphaned: list[OrphanedEnd] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether so many callbacks are pending that nothing more should be claimed."""
        return len(self.notifying) >= NOTIFYING_MAX

    @property
    def orphaned_room(self) -> int:
        """How many orphaned ends the next sweep may return."""
        return 0 if self.orphaned_pending else ORPHANED_MAX

    def keep_results(self, jobs: Iterable[LeasedJob], outcomes: Iterable[Any]) -> None:
        """Keep the results that callbacks need."""
        for job, outcome in zip(jobs, outcomes, strict=True):
            if job.canvas is not None and not job.dropped and outcome[0]:
                job.result = outcome[1]

    def hold_back(self, settlements: list[Settlement]) -> list[Settlement]:
        """Keep the settlements that must wait for callbacks; return the others."""
        if not self.linked:
            return settlements
        free = []
        for settlement in settlements:
            job = None if settlement.retried else self.linked.pop(settlement.token, None)
            if job is None:
                free.append(settlement)
            else:
                self.notifying[settlement.token] = job
                self._ends.append(UnsentCallbacks(job, settlement))
        return free

    def add_orphaned(self, queue: str, pairs: Iterable[bytes]) -> None:
        """Add the orphaned ends that a sweep returned: the name and the entry of each in turn."""
        flat = iter(pairs)
        found = [OrphanedEnd(queue, name, entry) for name, entry in zip(flat, flat, strict=False)]
        self._orphaned += found
        self.orphaned_pending += len(found)

    def take_work(self) -> tuple[list[UnsentCallbacks], list[OrphanedEnd]] | None:
        """Return what was added since the last call; None if there is nothing to do."""
        if not (self._ends or self._orphaned):
            return None
        work = self._ends, self._orphaned
        self._ends, self._orphaned = [], []
        return work
