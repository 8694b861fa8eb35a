"""The payloads of one lane on their way: to be fetched, to be stored, to be looked at at the end.

A mailbox between the lane and the ledger, which fill it, and the consumer, which hands what is in
it to the porter's threads. All of it lives on the consumer's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.jobs.message import InputSource
from headrace.payloads.store import PayloadEntry
from workers.batching.batcher import STEP_PLACE
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement

#: A stock client's results stay in its Celery result, as Celery users expect, up to this size.
STOCK_RESULT_MAX_BYTES: Final = 16 * 1024 * 1024


class PendingResult(NamedTuple):
    """One result to be stored, and the settlement that names it.

    Attributes:
        result: as the model process wrote it: JSON text.
        kind: its content type, where it is not JSON.
    """

    job: LeasedJob
    settlement: Settlement
    entry: PayloadEntry
    result: bytes
    kind: str


@dataclass(slots=True)
class PendingPayloads:
    """What one lane has under way.

    Attributes:
        store: the store that new results go to; "" keeps every result in its message.
        inline_limit_bytes: results of the API's jobs that are longer are stored.
        fetches: items whose input is to be fetched.
        results: results that are to be stored.
        ended: payloads whose job has ended, or was put off: to be looked at.
        in_transfer: how many items are being fetched for or stored, and are in no batch.
    """

    store: str = ""
    inline_limit_bytes: int = STOCK_RESULT_MAX_BYTES
    fetches: list[LeasedJob] = field(default_factory=list)
    results: list[PendingResult] = field(default_factory=list)
    ended: list[PayloadEntry] = field(default_factory=list)
    in_transfer: dict[str, LeasedJob] = field(default_factory=dict)
    _entries: dict[str, list[PayloadEntry]] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        """Whether there is something for the porter."""
        return bool(self.fetches or self.results or self.ended)

    def add_fetch(self, job: LeasedJob, model: str, source: InputSource) -> None:
        """The item's input lies elsewhere."""
        if source.ref:
            self._note(job.token, PayloadEntry(source.ref, job.id, model, "i"))
        self.in_transfer[job.token] = job
        self.fetches.append(job)

    def must_store(self, job: LeasedJob, result: bytes) -> bool:
        """Whether a result is too long for its Celery result."""
        message = job.message
        if not self.store or message is None or message.ignore_result:
            return False
        limit = self.inline_limit_bytes if message.ours else STOCK_RESULT_MAX_BYTES
        return len(result) > limit

    def add_result(self, load: PendingResult) -> None:
        """A result is to be stored before its job is settled."""
        self._note(load.job.token, load.entry)
        self.in_transfer[load.job.token] = load.job
        self.results.append(load)

    def room_left(self, rooms: list[int]) -> list[int]:
        """What is left of the room for each step when all that is under way has come."""
        left = list(rooms)
        for job in self.in_transfer.values():
            for place in range(STEP_PLACE[job.step], len(left)):
                left[place] = max(0, left[place] - 1)
        return left

    def transfer_done(self, job: LeasedJob) -> None:
        """The item's input is here, or its result is there, or neither will be."""
        self.in_transfer.pop(job.token, None)

    def forget(self, claims: Iterable[LeasedJob | Settlement]) -> None:
        """These claims are over; whether their payloads are still needed, the record says."""
        for claim in claims if self._entries else ():
            self.ended += self._entries.pop(claim.token, ())

    def _note(self, token: str, entry: PayloadEntry) -> None:
        self._entries.setdefault(token, []).append(entry)
