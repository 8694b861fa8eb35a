"""What becomes of a model process that hangs or has died, and of the jobs that it had.

A timeout is hard: the process tells where it hangs, and is killed with all that it has started. Who
is to blame for a lost batch is not known, so that each of its jobs runs alone next; none is charged
for its neighbours.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workers.consumer.replica_manager import ReplicaManager
from workers.jobs.batch import Batch
from workers.leases.manager import LeaseManager
from workers.models.served_model import ServedModel
from workers.observability.batch_log import about_batches
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.replica import Replica

if TYPE_CHECKING:
    from workers.celery.event_publisher import EventPublisher

logger = logging.getLogger(__name__)


class ReplicaFailures:
    """Gives up the model processes of one worker, and gives their jobs back.

    Args:
        selector: the sockets of the processes are registered there.
        leases: the account with Redis.
        observer: is told which batches have ended.
        orphan_guard: as of `ReplicaManager`.

    Attributes:
        keeper: starts the processes anew.
        new: one was lost since somebody has last looked: there is something to be told.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        leases: LeaseManager,
        observer: EventPublisher,
        orphan_guard: OrphanGuard,
    ) -> None:
        self.replica_manager = ReplicaManager(selector, self.lost, orphan_guard)
        self.new = False
        self._selector = selector
        self._leases = leases
        self._observer = observer

    def timed_out(self, model: ServedModel, replica: Replica, batch: Batch, now: float) -> None:
        """A batch has run for too long, and its process has told where it is."""
        size = len(batch.jobs)
        logger.error("a batch ran into its timeout", extra=about_batches(model, [batch]))
        begun, untouched = replica.take_batches()
        self.give_back(model, untouched, "free")
        if size == 1 and len(begun) == 1:
            model.stats.left(batch.reason)
            settlement = model.deadlines.timed_out(batch, now, replica.trace())
            self._leases.settle(model, [settlement])
            self._observer.finished(batch, [])
        else:
            # Which of them hangs is not known: each runs alone next, and none is charged.
            self.give_back(model, begun, "alone")
        self._give_up(model, replica, now, "a job ran longer than its timeout")

    def lost(self, model: ServedModel, replica: Replica, now: float) -> None:
        """A process is gone, or is to be: its batches go back, and it starts again."""
        if replica.stacks_requested and replica.batch is not None:
            # It hung, and the question where has ended it.
            self.timed_out(model, replica, replica.batch, now)
            return
        begun, untouched = replica.take_batches()
        if begun:
            told = {**about_batches(model, begun), "traceback": replica.trace()}
            logger.error("a model process died under a batch", extra=told)
        self.give_back(model, untouched, "free")
        self.give_back(model, begun, "crash")
        self._give_up(
            model, replica, now, "its device was lost" if replica.device_lost else "it died"
        )

    def give_back(self, model: ServedModel, batches: list[Batch], mode: str) -> None:
        """Put the jobs of these batches back into their queue; modes as in jobs/release.lua."""
        # What is given back last stands first in its queue.
        for batch in reversed(batches):
            if mode != "free":
                model.stats.left(batch.reason)
            self._leases.release(model, batch.jobs, mode)
            self._observer.finished(batch, [])

    def release_all(self, models: Sequence[ServedModel], now: float) -> None:
        """Stop all model processes; what the lanes hold goes back into the queues, uncharged."""
        for model in models:
            self.replica_manager.stop(model, now)
            for replica in model.replicas:
                for batches in replica.take_batches():
                    self.give_back(model, batches, "free")
            moving, telling = (
                model.pending_payloads.in_transfer.values(),
                model.callbacks.notifying.values(),
            )
            self._leases.release(model, [*model.take_all(), *moving, *telling], "free")
        for model in models:
            for replica in model.replicas:
                replica.stop()
        self.replica_manager.close()

    def release_prepared(self, model: ServedModel, now: float) -> None:
        """Release what is prepared while all processes wait before they are started again.

        Another worker may run meanwhile what this one cannot. A claim or a fetch that was under way
        brings more of it later.
        """
        if len(model.batcher) and all(
            replica.process is None and replica.restart_at > now for replica in model.replicas
        ):
            self._leases.release(model, model.take_all(), "free")

    def _give_up(self, model: ServedModel, replica: Replica, now: float, why: str) -> None:
        if replica.frames is not None:
            self._selector.unregister(replica.frames)
        self.replica_manager.ended(model, replica, now, why)
        self.new = True
