"""What model processes gave, from when it is heard until it is settled.

Between the two the next batch is handed over, so that no device waits while the last one's jobs are
turned into settlements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from workers.consumer.payload_transfer import PayloadTransfer
from workers.jobs.batch import Batch
from workers.leases.manager import LeaseManager
from workers.models.served_model import ServedModel
from workers.observability.batch_log import log_ended

if TYPE_CHECKING:
    from workers.celery.event_publisher import EventPublisher


class FinishedBatch(NamedTuple):
    """One batch that has run; the rest is as of `ServedModel.collect`."""

    model: ServedModel
    batch: Batch
    outcomes: list[Any]
    times: list[float]
    padding: int
    fits: int
    at: float


@dataclass(slots=True)
class FinishedBatches:
    """The batches that have run and are not settled.

    Attributes:
        leases: where they are settled.
        observer: is told that they have ended.
        transfer: stores what is too long for a settlement.
    """

    leases: LeaseManager
    observer: EventPublisher
    transfer: PayloadTransfer
    _ran: list[FinishedBatch] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._ran)

    def add(
        self, model: ServedModel, batch: Batch, told: tuple[Any, Any, int, int], now: float
    ) -> None:
        """A model process has answered: outcomes, times, padding and what memory has room for."""
        self._ran.append(FinishedBatch(model, batch, *told, now))
        if self._ran[-1].fits:
            self.settle()  # the next batch is to be smaller

    def settle(self) -> None:
        """Settle them all."""
        ran, self._ran = self._ran, []
        for model, batch, outcomes, times, padding, fits, at in ran:
            log_ended(model, batch, outcomes, at)
            settlements = model.batch_done(batch, outcomes, times, padding, fits, at)
            self.observer.finished(batch, settlements)
            self.leases.settle(model, settlements)
            if model.pending_payloads.results:
                loads = [load.settlement for load in model.pending_payloads.results]
                self.observer.finished(batch, loads)
                self.transfer.take(model)
