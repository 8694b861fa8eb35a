"""What threads do for a model's jobs: fetch and store payloads, and send Celery callbacks.

`ServedModel` and `LeaseManager` fill these lists. `workers.consumer.payload_transfer` and
`workers.canvas.notifier` empty them. All run on the consumer's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headrace.errors import HeadraceError
from headrace.jobs.message import InputSource
from headrace.payloads.store import PayloadEntry
from workers.batching.batcher import STEP_PLACE
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement

#: Results for stock Celery clients up to this size stay in the Celery result, as users expect.
STOCK_RESULT_MAX_BYTES: Final = 16 * 1024 * 1024
#: While this many jobs wait for their callbacks, nothing more is claimed.
NOTIFYING_MAX: Final = 256
#: The most orphaned ends that a sweep returns.
ORPHANED_MAX: Final = 100


class PendingResult(NamedTuple):
    """A result to store, and the settlement that names it.

    Attributes:
        result: JSON text, as the model process wrote it.
        content_type: empty if the result is JSON.
    """

    job: LeasedJob
    settlement: Settlement
    entry: PayloadEntry
    result: bytes
    content_type: str


class TransferOutcome(NamedTuple):
    """The outcome of a transfer.

    Attributes:
        retryable: whether the job may be tried again after this error.
    """

    job: LeasedJob
    body: bytes | None = None
    result: PendingResult | None = None
    error: HeadraceError | None = None
    retryable: bool = False


@dataclass(slots=True)
class PendingPayloads:
    """The payload work of a model.

    Attributes:
        store: the store for new results; empty keeps every result in its message.
        inline_limit_bytes: longer results of API jobs are stored.
        in_transfer: jobs whose payload is being fetched or stored, by token. They are in no batch.
    """

    store: str = ""
    inline_limit_bytes: int = STOCK_RESULT_MAX_BYTES
    in_transfer: dict[str, LeasedJob] = field(default_factory=dict)
    _fetches: list[LeasedJob] = field(default_factory=list)
    _results: list[PendingResult] = field(default_factory=list)
    _ended: list[PayloadEntry] = field(default_factory=list)
    _entries: dict[str, list[PayloadEntry]] = field(default_factory=dict)

    def add_fetch(self, job: LeasedJob, model: str, source: InputSource) -> None:
        """Fetch the job's input from its source."""
        if source.ref:
            self._remember(job.token, PayloadEntry(source.ref, job.id, model, "i"))
        self.in_transfer[job.token] = job
        self._fetches.append(job)

    def must_store(self, job: LeasedJob, result: bytes) -> bool:
        """Return whether a result is too long for its Celery result."""
        message = job.message
        if not self.store or message is None or message.ignore_result:
            return False
        limit = self.inline_limit_bytes if message.ours else STOCK_RESULT_MAX_BYTES
        return len(result) > limit

    def add_result(self, result: PendingResult) -> None:
        """Store a result before its job is settled."""
        self._remember(result.job.token, result.entry)
        self.in_transfer[result.job.token] = result.job
        self._results.append(result)

    def take_work(self) -> tuple[list[LeasedJob], list[PendingResult], list[PayloadEntry]]:
        """Return what was added since the last call.

        Returns:
            Jobs whose input must be fetched, results to store, and payloads that are deleted unless
            their job still needs them.
        """
        work = self._fetches, self._results, self._ended
        self._fetches, self._results, self._ended = [], [], []
        return work

    def room_left(self, room: list[int]) -> list[int]:
        """Return the room for each step that is left once all jobs in transfer have arrived."""
        left = list(room)
        for job in self.in_transfer.values():
            for place in range(STEP_PLACE[job.step], len(left)):
                left[place] = max(0, left[place] - 1)
        return left

    def transfer_done(self, job: LeasedJob) -> None:
        """Note that the job's transfer has ended, in success or failure."""
        self.in_transfer.pop(job.token, None)

    def let_go(self, claims: Iterable[LeasedJob | Settlement]) -> None:
        """Queue the payloads of ended claims for deletion; the store checks the job's record."""
        for claim in claims if self._entries else ():
            self._ended += self._entries.pop(claim.token, ())

    def _remember(self, token: str, entry: PayloadEntry) -> None:
        self._entries.setdefault(token, []).append(entry)


class UnsentCallbacks(NamedTuple):
    """A job that has ended and has callbacks, with the settlement to send after these."""

    job: LeasedJob
    settlement: Settlement


class OrphanedEnd(NamedTuple):
    """The end of a job that a Redis script settled, so no worker has sent its callbacks.

    Attributes:
        name: the name of the entry in the queue's list of such ends.
        entry: the entry, as `save_orphaned_end` in lib/callbacks.lua writes it.
    """

    queue: str
    name: bytes
    entry: bytes


@dataclass(slots=True)
class PendingCallbacks:
    """The callbacks of a model's jobs.

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

    def hold_for_callbacks(self, settlements: list[Settlement]) -> list[Settlement]:
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
        ends = [OrphanedEnd(queue, name, entry) for name, entry in zip(flat, flat, strict=False)]
        self._orphaned += ends
        self.orphaned_pending += len(ends)

    def take_work(self) -> tuple[list[UnsentCallbacks], list[OrphanedEnd]]:
        """Return what was added since the last call."""
        work = self._ends, self._orphaned
        self._ends, self._orphaned = [], []
        return work
