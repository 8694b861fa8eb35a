"""When a worker asks for jobs, and when it reads what it was given.

What a turn of the loop has to say leaves in one write. Where a whole batch is known to wait, the
claim for it leaves before that, so that Redis works at it while this worker reads the last one, or
turns what a device has just given into settlements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.redis.scripts import CLAIM_HEAD, CLAIM_ROW
from workers.leases.manager import LeaseManager
from workers.models.served_model import ServedModel
from workers.scheduling.dispatcher import Dispatcher

#: While a model's devices are busy, its prepared batch is topped up at most this often.
TOP_UP_S: Final = 0.002


class Claimer:
    """The claims of one worker.

    Args:
        lanes: the models.
        ledger: where they are said.
        devices: says which lane may run a batch.

    Attributes:
        top_up_at: when a prepared batch may be topped up again.
    """

    def __init__(
        self, lanes: Sequence[ServedModel], ledger: LeaseManager, devices: Dispatcher
    ) -> None:
        self._lanes = lanes
        self._ledger = ledger
        self._devices = devices
        self.top_up_at = 0.0

    def ask(self, now: float) -> None:
        """Ask for what there is room for, together with what else is said."""
        for lane in self._lanes:
            self._ask(lane, lane.claimable, now)

    def ask_before_settling(self, now: float) -> None:
        """Ask at once where a whole batch will come: what ran meanwhile is to be settled."""
        for lane in self._lanes:
            rooms = lane.claimable
            if fills(lane, rooms):
                self._ask(lane, rooms, now)
        self._ledger.flush(now)

    def ask_before_reading(self, now: float) -> None:
        """Ask at once for the batch behind the one that has come and leaves when it is read."""
        for lane in self._lanes:
            if lane.unread and leaves_when_read(lane) and self._devices.runs_at_once(lane):
                rooms = lane.claimable
                if fills(lane, rooms):
                    self._ask(lane, rooms, now)
                    self._ledger.flush(now)

    def read(self, now: float) -> None:
        """Read what was claimed, and settle at once what will not run."""
        for lane in self._lanes:
            if lane.unread:
                self._ledger.settle(lane, lane.read(now))

    def cut_off(self, now: float) -> None:
        """Redis is away: what is held is to be known when it is back, and nobody is to come."""
        self.read(now)
        for lane in self._lanes:
            lane.company.lost()

    def _ask(self, lane: ServedModel, rooms: Sequence[int], now: float) -> None:
        # Said when it is back, just before what is not known to be held is given back: all of it.
        if not rooms or not self._ledger.connected:
            return
        if now >= self.top_up_at or lane.in_need or self._devices.may_run(lane):
            self.top_up_at = now + TOP_UP_S
            self._ledger.claim(lane, rooms)
            lane.company.asked(rooms, now)


def fills(lane: ServedModel, rooms: Sequence[int]) -> bool:
    """Whether a whole batch is known to wait where there is room for it."""
    size = lane.batcher.policy.max_batch_size
    waiting = zip(rooms, lane.backlog.waiting, strict=False)
    return max(rooms, default=0) >= size <= sum(left for room, left in waiting if room)


def leaves_when_read(lane: ServedModel) -> bool:
    """Whether what has come is one batch for sure, full and with nothing before it.

    That is known where its items have neither cost nor key.
    """
    policy = lane.batcher.policy
    jobs = sum(len(reply) - CLAIM_HEAD for reply in lane.unread) // CLAIM_ROW
    bounded = policy.max_batch_cost is not None or policy.keyed
    beside = len(lane.batcher) or lane.cargo.moving
    return jobs >= policy.max_batch_size and not bounded and not beside
