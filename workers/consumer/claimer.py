"""When a worker claims jobs, and when it reads the claimed jobs.

All calls of a turn are sent in a single write. If a whole batch is known to wait, its claim is sent
earlier. Redis then works on it while this worker reads the last claim, or settles the last batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from workers.leases.manager import LeaseManager
from workers.models.served_model import ServedModel
from workers.scheduling.dispatcher import Dispatcher

#: While a model's devices are busy, its prepared batch is topped up at most this often.
TOP_UP_S: Final = 0.002


class Claimer:
    """The claims of a worker.

    Attributes:
        top_up_at: when a prepared batch may be topped up again.
    """

    def __init__(
        self, models: Sequence[ServedModel], leases: LeaseManager, dispatcher: Dispatcher
    ) -> None:
        self._models = models
        self._leases = leases
        self._dispatcher = dispatcher
        self.top_up_at = 0.0

    def claim(self, now: float) -> None:
        """Claim what there is room for, in the next write."""
        for model in self._models:
            self._claim(model, model.claim_request(), now)

    def claim_before_settling(self, now: float) -> None:
        """Claim at once the whole batches that wait, so that Redis works while batches settle."""
        for model in self._models:
            room = model.claim_request()
            if model.whole_batch_waits(room):
                self._claim(model, room, now)
        self._leases.flush(now)

    def claim_before_reading(self, now: float) -> None:
        """Claim at once the batch behind a claimed batch that will run as soon as it is read."""
        for model in self._models:
            if not model.unread or not model.whole_batch_unread:
                continue
            if self._dispatcher.runs_at_once(model):
                room = model.claim_request()
                if model.whole_batch_waits(room):
                    self._claim(model, room, now)
                    self._leases.flush(now)

    def read_claims(self, now: float) -> None:
        """Read the claimed jobs, and settle those that will not run."""
        for model in self._models:
            if model.unread:
                self._leases.settle(model, model.read_claims(now))
                self._leases.move_misplaced(model)

    def connection_lost(self, now: float) -> None:
        """Read the claimed jobs, because `held` must be complete when Redis is back."""
        self.read_claims(now)
        for model in self._models:
            model.connection_lost()

    def _claim(self, model: ServedModel, room: Sequence[int], now: float) -> None:
        # Without a connection a claim would be sent on reconnect, just before `release_owner`
        # returns all that it leased.
        if not room or not self._leases.connected or self._dispatcher.isolation.holds_claims:
            return
        if now >= self.top_up_at or model.claims_better or self._dispatcher.may_run(model):
            self.top_up_at = now + TOP_UP_S
            self._leases.claim(model, room, now)
