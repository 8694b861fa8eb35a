"""Payloads of one model that must be fetched, stored or deleted.

`ServedModel` fills it, and `workers.consumer.payload_transfer` empties it. Both run on the
consumer's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.errors import HeadraceError
from headrace.jobs.message import InputSource
from headrace.payloads.store import PayloadEntry
from workers.batching.batcher import STEP_PLACE
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement

#: Results for stock Celery clients up to this size stay in the Celery result, as users expect.
STOCK_RESULT_MAX_BYTES: Final = 16 * 1024 * 1024


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


class PayloadWork(NamedTuple):
    """What the payload threads have to do.

    Attributes:
        fetches: jobs whose input must be fetched.
        results: results to store.
        ended: payloads that are deleted unless their job still needs them.
    """

    fetches: list[LeasedJob]
    results: list[PendingResult]
    ended: list[PayloadEntry]


class TransferOutcome(NamedTuple):
    """What came of one transfer.

    Attributes:
        body: the input, if one was fetched.
        result: the result that was stored, or could not be stored.
        error: why the transfer failed; None if it succeeded.
        retryable: whether the job may be tried again after this error.
    """

    job: LeasedJob
    body: bytes | None = None
    result: PendingResult | None = None
    error: HeadraceError | None = None
    retryable: bool = False


@dataclass(slots=True)
class PendingPayloads:
    """The payload work of one model.

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

    def take_work(self) -> PayloadWork | None:
        """Return the work that was added since the last call; None if there is nothing to do."""
        if not (self._fetches or self._results or self._ended):
            return None
        work = PayloadWork(self._fetches, self._results, self._ended)
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

    def forget(self, claims: Iterable[LeasedJob | Settlement]) -> None:
        """Queue the payloads of ended claims for deletion; the store checks the job's record."""
        for claim in claims if self._entries else ():
            self._ended += self._entries.pop(claim.token, ())

    def _remember(self, token: str, entry: PayloadEntry) -> None:
        self._entries.setdefault(token, []).append(entry)
