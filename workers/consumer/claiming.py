"""When a worker asks for jobs, and when it reads what it was given.

What a turn of the loop has to say leaves in one write. Where a whole batch is known to wait, the
claim for it leaves before that, so that Redis works at it while this worker reads the last one, or
turns what a device has just given into settlements.
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
    """The claims of one worker.

    Args:
        models: the models.
        leases: where they are said.
        dispatcher: says which lane may run a batch.

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
        """Ask for what there is room for, together with what else is said."""
        for model in self._models:
            self._ask(model, model.claimable, now)

    def claim_before_settling(self, now: float) -> None:
        """Ask at once where a whole batch will come: what ran meanwhile is to be settled."""
        for model in self._models:
            rooms = model.claimable
            if fills(model, rooms):
                self._ask(model, rooms, now)
        self._leases.flush(now)

    def claim_before_reading(self, now: float) -> None:
        """Ask at once for the batch behind the one that has come and leaves when it is read."""
        for model in self._models:
            if (
                model.claim_replies
                and leaves_when_read(model)
                and self._dispatcher.runs_at_once(model)
            ):
                rooms = model.claimable
                if fills(model, rooms):
                    self._ask(model, rooms, now)
                    self._leases.flush(now)

    def read_replies(self, now: float) -> None:
        """Read what was claimed, and settle at once what will not run."""
        for model in self._models:
            if model.claim_replies:
                self._leases.settle(model, model.read_claims(now))

    def connection_lost(self, now: float) -> None:
        """Redis is away: what is held is to be known when it is back, and nobody is to come."""
        self.read_replies(now)
        for model in self._models:
            model.expected_arrivals.connection_lost()

    def _ask(self, model: ServedModel, rooms: Sequence[int], now: float) -> None:
        # Said when it is back, just before what is not known to be held is given back: all of it.
        if not rooms or not self._leases.connected:
            return
        if now >= self.top_up_at or model.needs_better or self._dispatcher.may_run(model):
            self.top_up_at = now + TOP_UP_S
            self._leases.claim(model, rooms)
            model.expected_arrivals.claim_sent(rooms, now)


def fills(model: ServedModel, rooms: Sequence[int]) -> bool:
    """Whether a whole batch is known to wait where there is room for it."""
    size = model.batcher.policy.max_batch_size
    waiting = zip(rooms, model.backlog.waiting, strict=False)
    return max(rooms, default=0) >= size <= sum(left for room, left in waiting if room)


def leaves_when_read(model: ServedModel) -> bool:
    """Whether what has come is one batch for sure, full and with nothing before it.

    That is known where its items have neither cost nor key.
    """
    policy = model.batcher.policy
    jobs = sum(len(reply.jobs) for reply in model.claim_replies)
    bounded = policy.max_batch_cost is not None or policy.keyed
    beside = len(model.batcher) or model.pending_payloads.in_transfer
    return jobs >= policy.max_batch_size and not bounded and not beside
