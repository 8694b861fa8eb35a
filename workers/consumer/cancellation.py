"""Jobs that this worker holds and that nothing is to come of any more: cancelled, or another's.

Who is not handed over yet leaves its batcher or its fetch at once, and its mates run without it. Of
who is, the model process is told, which leaves it out where it can; the rest is decided when it is
settled. What a cancel could not tell is learnt from the renewal of the leases.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.observability import worker_report
from workers.jobs.leased_job import LeasedJob
from workers.leases.manager import ASKED, FENCED, LeaseManager
from workers.models.served_model import ServedModel

logger = logging.getLogger(__name__)

_MODEL_ID_TOKEN = 3


class Cancellation:
    """Lets go of jobs.

    Args:
        lanes: the models.
        ledger: where a cancelled job is settled.
    """

    def __init__(self, lanes: Sequence[ServedModel], ledger: LeaseManager) -> None:
        self._lanes = {lane.model.name: lane for lane in lanes}
        self._ledger = ledger
        self._unsure: dict[str, ServedModel] = {}
        self._turned_at: float | None = None

    def in_doubt(self, now: float) -> bool:
        """Whether leases may have run out unseen, so that nothing is to be handed over now.

        So it is after this worker was stopped for a while, until the answers to the next renewal
        are here. An outage of Redis is no such while: nobody else can have claimed anything.

        Args:
            now: the time, at the begin of a turn of the loop.
        """
        turned_at, self._turned_at = self._turned_at, now
        if not self._ledger.connected:
            self._unsure.clear()
            return False
        if turned_at is not None and now - turned_at > self._ledger.limits.lease_ttl_s * 2 / 3:
            # Of a host that was suspended no worker is to reap what its neighbours go on with.
            self._ledger.stood_still(now)
            self._unsure = {lane.model.name: lane for lane in self._lanes.values()}
            for lane in self._lanes.values():
                self.renew(lane)
        return any(lane.held for lane in self._unsure.values())

    def renew(self, lane: ServedModel) -> None:
        """Renew the leases of a lane, and let go of what that shows to be over."""

        def answered(items: list[LeasedJob], codes: list[Any]) -> None:
            self._unsure.pop(lane.model.name, None)
            lane.stats.count(worker_report.RENEWED, sum(int(code) != FENCED for code in codes))
            for item, code in zip(items, codes, strict=True):
                if lane.held.get(item.id) is not item or item.dropped:
                    continue
                if int(code) == ASKED:
                    self._cancel(lane, item)
                elif int(code) == FENCED:
                    self._lose(lane, item)

        self._ledger.renew(lane, answered)

    def heard(self, published: Sequence[bytes]) -> bool:
        """Read what jobs/cancel.lua published: model, id and token of each job; whether it has."""
        for body in published:
            try:
                self._hear(body)
            except ValueError as error:
                # The renewal of the leases says it too.
                logger.warning("what was published of cancels cannot be read: %s", error)
        return bool(published)

    def _hear(self, body: bytes) -> None:
        told = msgspec.msgpack.decode(body, type=list[str])
        for at in range(0, len(told), _MODEL_ID_TOKEN):
            model, job_id, token = told[at : at + _MODEL_ID_TOKEN]
            lane = self._lanes.get(model)
            if lane is None:
                continue
            item = lane.held.get(job_id)
            if item is None or item.token != token:
                if lane.backlog.claiming or lane.unread:
                    lane.foretold.add(token)
            elif not item.dropped:
                self._cancel(lane, item)

    def _cancel(self, lane: ServedModel, item: LeasedJob) -> None:
        if self._taken_out(lane, item):
            self._ledger.settle(lane, [lane.cancel(item)])
        elif item.dispatched_at:
            item.dropped = "cancelled"
            for replica in lane.replicas:
                replica.drop(item)

    def _lose(self, lane: ServedModel, item: LeasedJob) -> None:
        logger.warning(
            "the job is another's by now; this worker lets go of it",
            extra={"model": lane.model.name, "job": item.id},
        )
        taken_out = self._taken_out(lane, item)
        if not taken_out and not item.dispatched_at:
            return  # its settlement or its release is under way, and says so too
        item.dropped = "lost"
        if taken_out:
            lane.forget([item])
        else:
            for replica in lane.replicas:
                replica.drop(item)

    @staticmethod
    def _taken_out(lane: ServedModel, item: LeasedJob) -> bool:
        """Take an item out that was not handed over yet; whether it was to be."""
        if item.dispatched_at:
            return False
        if lane.batcher.remove(item):
            lane.deadlines.left([item])
            return True
        if item.token in lane.cargo.moving:
            lane.cargo.moved(item)
            return True
        return False
