"""The ends of one lane's jobs that others wait for: to be told before the job is settled.

A mailbox between the lane and the ledger, which fill it, and the consumer, which hands what is in
it to the herald's thread. All of it lives on the consumer's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from workers.jobs.canvas import read_canvas
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement

#: No more is claimed while so many jobs wait to be told of.
TELLING_MAX: Final = 256
#: How many ends that scripts have left are taken over at once.
UNTOLD_MAX: Final = 100


class EndedJob(NamedTuple):
    """A job that has ended, with what follows it, and the settlement that is to say so."""

    job: LeasedJob
    settlement: Settlement


class OrphanedEnd(NamedTuple):
    """An end that a script has left to be told.

    Attributes:
        queue: where the job was.
        name: the entry's name there.
        entry: as `save_orphaned_end` in lib/canvas.lua writes it.
    """

    queue: str
    name: bytes
    entry: bytes


@dataclass(slots=True)
class PendingCallbacks:
    """What one lane has under way.

    Attributes:
        linked: jobs that this worker holds and that something follows, by token.
        ends: of these, those whose end is known and is to be told.
        notifying: of these, those that the herald has not told yet.
        orphaned: ends that scripts have left.
        orphaned_pending: how many of them the herald has.
    """

    linked: dict[str, LeasedJob] = field(default_factory=dict)
    ends: list[EndedJob] = field(default_factory=list)
    notifying: dict[str, LeasedJob] = field(default_factory=dict)
    orphaned: list[OrphanedEnd] = field(default_factory=list)
    orphaned_pending: int = 0

    @property
    def has_work(self) -> bool:
        """Whether there is something for the herald."""
        return bool(self.ends or self.orphaned)

    @property
    def full(self) -> bool:
        """Whether the herald is so far behind that nothing is to be claimed."""
        return len(self.notifying) >= TELLING_MAX

    @property
    def orphaned_room(self) -> int:
        """How many ends that scripts have left may be asked for."""
        return 0 if self.orphaned_pending else UNTOLD_MAX

    def link(self, job: LeasedJob, raw: bytes) -> bool:
        """Note what follows a job that was claimed with this message; whether anything does."""
        job.canvas = read_canvas(raw)
        if job.canvas is not None:
            self.linked[job.token] = job
        return job.canvas is not None

    def keep_results(self, jobs: Iterable[LeasedJob], outcomes: Iterable[Any]) -> None:
        """Keep the results for those that follow."""
        for job, outcome in zip(jobs, outcomes, strict=True):
            if job.canvas is not None and not job.dropped and outcome[0]:
                job.result = outcome[1]

    def hold_back(self, settlements: Iterable[Settlement]) -> list[Settlement]:
        """Keep back what is to be told first; the settlements that can be said at once."""
        free = []
        for settlement in settlements:
            job = None if settlement.retried else self.linked.pop(settlement.token, None)
            if job is None:
                free.append(settlement)
            else:
                self.notifying[settlement.token] = job
                self.ends.append(EndedJob(job, settlement))
        return free

    def add_orphaned(self, queue: str, pairs: Iterable[bytes]) -> None:
        """Take over what a sweep has found: names, each with its entry."""
        each = iter(pairs)
        found = [OrphanedEnd(queue, name, entry) for name, entry in zip(each, each, strict=False)]
        self.orphaned += found
        self.orphaned_pending += len(found)

    def notified(self, job: LeasedJob) -> None:
        """What follows the item knows of its end."""
        self.notifying.pop(job.token, None)
