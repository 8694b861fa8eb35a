"""What the consumer reports to: task events and spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.redis.scripts import Command
from workers.jobs.batch import Batch
from workers.jobs.settlement import Settlement
from workers.leases.manager import SettlementObserver
from workers.models.served_model import ServedModel


class WorkerObserver(SettlementObserver, Protocol):
    """Gets what happens to batches, and returns the commands that publish it.

    Attributes:
        events_at: when `events` must be called at the latest.
    """

    events_at: float

    def started(self, model: ServedModel, batch: Batch) -> None:
        """Take a batch that was sent to a model process."""

    def finished(self, batch: Batch, settlements: Iterable[Settlement]) -> None:
        """Take a batch that has left its model process; no settlements if it was released."""

    def preempted(self, batch: Batch) -> None:
        """Take a staged batch that was returned because another model runs first."""

    def events(self, now: float) -> Sequence[Command]:
        """Return the commands that publish task events, if they are due."""

    def close(self) -> None:
        """Send what is left; the worker ends."""
