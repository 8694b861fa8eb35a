"""What becomes of a model process that hangs or has died, and of the jobs that it had.

A timeout is hard: the process tells where it hangs, and is killed with all that it has started. Who
is to blame for a lost batch is not known, so that each of its jobs runs alone next; none is charged
for its neighbours.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Sequence

from workers.celery.event_publisher import EventPublisher
from workers.consumer.replica_manager import ReplicaManager
from workers.jobs.leased_job import Batch
from workers.leases.manager import LeaseManager
from workers.models.served_model import ServedModel
from workers.observability.batch_log import about_batches
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.replica import Replica

logger = logging.getLogger(__name__)


class ReplicaFailures:
    """Gives up the model processes of one worker, and gives their jobs back.

    Args:
        selector: the sockets of the processes are registered there.
        ledger: the account with Redis.
        reporter: is told which batches have ended.
        guard: as of `ReplicaManager`.

    Attributes:
        keeper: starts the processes anew.
        new: one was lost since somebody has last looked: there is something to be told.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        ledger: LeaseManager,
        reporter: EventPublisher,
        guard: OrphanGuard,
    ) -> None:
        self.keeper = ReplicaManager(selector, self.lost, guard)
        self.new = False
        self._selector = selector
        self._ledger = ledger
        self._reporter = reporter

    def timed_out(self, lane: ServedModel, replica: Replica, batch: Batch, now: float) -> None:
        """A batch has run for too long, and its process has told where it is."""
        size = len(batch.items)
        logger.error("a batch ran into its timeout", extra=about_batches(lane, [batch]))
        begun, untouched = replica.suspects()
        self.give_back(lane, untouched, "free")
        if size == 1 and len(begun) == 1:
            lane.stats.left(batch.reason)
            settlement = lane.deadlines.timed_out(batch, now, replica.trace())
            self._ledger.settle(lane, [settlement])
            self._reporter.finished(batch, [])
        else:
            # Which of them hangs is not known: each runs alone next, and none is charged.
            self.give_back(lane, begun, "alone")
        self._give_up(lane, replica, now, "a job ran longer than its timeout")

    def lost(self, lane: ServedModel, replica: Replica, now: float) -> None:
        """A process is gone, or is to be: its batches go back, and it starts again."""
        if replica.asked and replica.batch is not None:
            # It hung, and the question where has ended it.
            self.timed_out(lane, replica, replica.batch, now)
            return
        begun, untouched = replica.suspects()
        if begun:
            told = {**about_batches(lane, begun), "traceback": replica.trace()}
            logger.error("a model process died under a batch", extra=told)
        self.give_back(lane, untouched, "free")
        self.give_back(lane, begun, "crash")
        self._give_up(lane, replica, now, "its device was lost" if replica.leaving else "it died")

    def give_back(self, lane: ServedModel, batches: list[Batch], mode: str) -> None:
        """Put the jobs of these batches back into their queue; modes as in jobs/release.lua."""
        # What is given back last stands first in its queue.
        for batch in reversed(batches):
            if mode != "free":
                lane.stats.left(batch.reason)
            self._ledger.release(lane, batch.items, mode)
            self._reporter.finished(batch, [])

    def give_all_back(self, lanes: Sequence[ServedModel], now: float) -> None:
        """Stop all model processes; what the lanes hold goes back into the queues, uncharged."""
        for lane in lanes:
            self.keeper.stop(lane, now)
            for replica in lane.replicas:
                for batches in replica.suspects():
                    self.give_back(lane, batches, "free")
            moving, telling = lane.cargo.moving.values(), lane.sequels.telling.values()
            self._ledger.release(lane, [*lane.take_all(), *moving, *telling], "free")
        for lane in lanes:
            for replica in lane.replicas:
                replica.stop()
        self.keeper.close()

    def let_go(self, lane: ServedModel, now: float) -> None:
        """Release what is prepared while all processes wait before they are started again.

        Another worker may run meanwhile what this one cannot. A claim or a fetch that was under way
        brings more of it later.
        """
        if len(lane.batcher) and all(
            replica.process is None and replica.restart_at > now for replica in lane.replicas
        ):
            self._ledger.release(lane, lane.take_all(), "free")

    def _give_up(self, lane: ServedModel, replica: Replica, now: float, why: str) -> None:
        if replica.frames is not None:
            self._selector.unregister(replica.frames)
        self.keeper.ended(lane, replica, now, why)
        self.new = True
