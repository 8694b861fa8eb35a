"""What happens to a model process that hangs or has died, and to the jobs that it had.

A process that hangs writes its stacks and is killed, with all that it has started. Which job of a
lost batch is to blame is unknown, so each of them runs alone next, and none is charged for the
others.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Sequence

from workers.consumer.observer import WorkerObserver
from workers.consumer.replica_manager import ReplicaManager
from workers.jobs.batch import Batch
from workers.leases.manager import LeaseManager
from workers.models.served_model import ServedModel
from workers.observability.batch_log import about_batches
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.replica import Replica

logger = logging.getLogger(__name__)


class ReplicaFailures:
    """Gives up model processes, and releases their jobs.

    Args:
        selector: the sockets of the processes are registered there.
        leases: settles and releases the jobs.
        observer: gets the batches that have ended.
        orphan_guard: as for `ReplicaManager`.

    Attributes:
        replica_manager: restarts the processes.
        new: a process was lost and the model states have not been reported since.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        leases: LeaseManager,
        observer: WorkerObserver,
        orphan_guard: OrphanGuard,
    ) -> None:
        self.replica_manager = ReplicaManager(selector, self.lost, orphan_guard)
        self.new = False
        self._selector = selector
        self._leases = leases
        self._observer = observer

    def timed_out(self, model: ServedModel, replica: Replica, batch: Batch, now: float) -> None:
        """Give up a process whose batch exceeded its timeout, after it has written its stacks."""
        size = len(batch.jobs)
        logger.error("batch exceeded its timeout", extra=about_batches(model, [batch]))
        begun, untouched = replica.take_batches()
        self.release(model, untouched, "free")
        if size == 1 and len(begun) == 1:
            settlement = model.batch_timed_out(batch, now, replica.trace())
            self._leases.settle(model, [settlement])
            self._observer.finished(batch, [])
        else:
            # Any of them may hang: each runs alone next, and none is charged.
            self.release(model, begun, "alone")
        self._give_up(model, replica, now, "a job ran longer than its timeout")

    def lost(self, model: ServedModel, replica: Replica, now: float) -> None:
        """Give up a process that is gone or must go: release its batches, and restart it."""
        if replica.stacks_requested and replica.batch is not None:
            # It hung, and the request for its stacks has ended it.
            self.timed_out(model, replica, replica.batch, now)
            return
        begun, untouched = replica.take_batches()
        if begun:
            fields = {**about_batches(model, begun), "traceback": replica.trace()}
            logger.error("model process died during a batch", extra=fields)
        self.release(model, untouched, "free")
        self.release(model, begun, "crash")
        why = "its device was lost" if replica.device_lost else "it died"
        self._give_up(model, replica, now, why)

    def release(self, model: ServedModel, batches: list[Batch], mode: str) -> None:
        """Return the jobs of these batches to their queue; for the mode see `LeaseManager`."""
        # The jobs that are released last are first in their queue.
        for batch in reversed(batches):
            if mode != "free":
                model.stats.left(batch.reason)
            self._leases.release(model, batch.jobs, mode)
            self._observer.finished(batch, [])

    def release_all(self, models: Sequence[ServedModel], now: float) -> None:
        """Stop all model processes, and return all held jobs to their queues, uncharged."""
        for model in models:
            self.replica_manager.stop(model, now)
            for replica in model.replicas:
                for batches in replica.take_batches():
                    self.release(model, batches, "free")
            self._leases.release(model, model.release_all(), "free")
        for model in models:
            for replica in model.replicas:
                replica.stop()
        self.replica_manager.close()

    def release_prepared(self, model: ServedModel, now: float) -> None:
        """Release the prepared jobs if all processes wait to be restarted.

        Another worker may run them meanwhile. A pending claim or transfer may bring more later.
        """
        if model.prepared and all(
            replica.process is None and replica.restart_at > now for replica in model.replicas
        ):
            self._leases.release(model, model.release_prepared(), "free")

    def _give_up(self, model: ServedModel, replica: Replica, now: float, why: str) -> None:
        if replica.frames is not None:
            self._selector.unregister(replica.frames)
        self.replica_manager.ended(model, replica, now, why)
        self.new = True
