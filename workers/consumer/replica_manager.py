"""Starts, watches and recycles the model processes of one worker.

A process is recycled after `max_jobs`, or when it exceeds `max_memory_mb`. The next process is
loaded and warm before the old one takes its last batch. If two copies do not fit into memory
(`recycle_overlap: false`), the old one ends first. Replicas are recycled one at a time, so that the
others go on.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable
from typing import Any, Final

from workers.models.served_model import ServedModel
from workers.observability.batch_log import about
from workers.protocol.phases import STARTING, Phase
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.replica import Replica

logger = logging.getLogger(__name__)

#: How often the memory of the processes is checked.
MEMORY_S: Final = 1.0


class ReplicaManager:
    """The model processes of one worker.

    Args:
        selector: the sockets of the processes are registered there, with (model, replica).
        lost: called with model, replica and time when a process must be given up.
        orphan_guard: ends what the processes started when the worker is gone.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        lost: Callable[[ServedModel, Replica, float], None],
        orphan_guard: OrphanGuard,
    ) -> None:
        self._selector = selector
        self._lost = lost
        self._orphan_guard = orphan_guard
        self._memory_at = 0.0

    def maintain(self, models: list[ServedModel], now: float) -> None:
        """Start, give up and recycle the processes that are due."""
        check_memory = now >= self._memory_at
        if check_memory:
            self._memory_at = now + MEMORY_S
        for model in models:
            for replica in list(model.replicas):
                if replica.process is None:
                    if now >= replica.restart_at:
                        self._restart(model, replica, now)
                elif replica.overdue(now):
                    if replica.state in STARTING:
                        self.load_failed(model, replica, replica.error)
                    self._lost(model, replica, now)
            self._recycle(model, now, check_memory)

    def due_times(self, model: ServedModel) -> list[float]:
        """Return the times at which `maintain` must be called for a model."""
        return [
            replica.restart_at if replica.process is None else replica.due_at
            for replica in model.replicas
        ]

    @staticmethod
    def load_failed(model: ServedModel, replica: Replica, traceback: str) -> None:
        """Log a failed load; the same traceback in a row is logged in full only once."""
        repeated = model.replica_history.add_load_failure(traceback)
        shown = traceback.rstrip().rpartition("\n")[2] if repeated else traceback
        logger.error("the model cannot be loaded", extra={**about(model), "traceback": shown})
        replica.load_failed(traceback)

    def ready(self, model: ServedModel, replica: Replica, info: dict[str, Any]) -> None:
        """Put a loaded process into service; drain the process that it replaces, if any.

        Args:
            model: the model.
            replica: the process.
            info: what the process reported: `load_s`, `fits`, `helpers` and `overlap`.
        """
        replica.ready(info)
        model.replica_history.add_load(info["load_s"])
        if replica.fits:
            model.observe_memory(model.config.max_batch_size, replica.fits)
        logger.info("loaded in %.2f s", info["load_s"], extra=about(model))
        limit = model.config.max_memory_mb
        if limit is not None and (taken := replica.memory_mib()) > limit:
            logger.error(
                "the process needs %d MiB right after its load, more than max_memory_mb (%d), so "
                "it is not recycled for its memory; raise max_memory_mb",
                taken, limit, extra=about(model),
            )  # fmt: skip
            replica.outgrown = True
        for old in model.replicas:
            if old.successor is replica:
                old.drain()

    def ended(self, model: ServedModel, replica: Replica, now: float, why: str) -> None:
        """Clean up after a process that is gone, for the reason `why`.

        The selector must not watch its socket any more.
        """
        if replica.loaded:
            trace = replica.trace()
            model.replica_history.add_loss(now, f"{why}\n{trace}" if trace else why)
        if replica.process is not None:
            self._orphan_guard.forget(replica.process.pid)
        replica.ended(now)
        if replica.successor is not None:
            # The successor takes its place, even while it still loads.
            model.replicas.remove(replica)

    def stop(self, model: ServedModel, now: float) -> None:
        """End all processes of a model; those that run a batch or still load, at once."""
        for replica in model.replicas:
            if replica.batch is not None or replica.state in STARTING:
                replica.kill()
            else:
                replica.retire(now)

    def close(self) -> None:
        """End the orphan guard, when all processes have ended."""
        self._orphan_guard.close()

    def _restart(self, model: ServedModel, replica: Replica, now: float) -> None:
        replica.restart_at = model.replica_history.restart_at(now)
        if replica.restart_at <= now:
            self._start(model, replica, now)
        else:
            reason = model.replica_history.wait_reason(now).partition("\n")[0]
            logger.error("%s", reason, extra=about(model))

    def _start(self, model: ServedModel, replica: Replica, now: float) -> None:
        model.replica_started()
        frames = replica.start(now, self._orphan_guard.mark)
        if replica.process is not None:
            self._orphan_guard.watch(replica.process.pid)
        self._selector.register(frames, selectors.EVENT_READ, (model, replica))

    def _recycle(self, model: ServedModel, now: float, check_memory: bool) -> None:
        for replica in model.replicas:
            if (
                replica.state is Phase.DRAINING
                and replica.batch is None
                and not replica.device_lost
            ):
                replica.retire(now)
        if any(replica.recycling for replica in model.replicas):
            return
        for replica in model.replicas:
            why = self._worn(model, replica, check_memory)
            if why:
                replica.recycling = why
                logger.info("recycling a model process: %s", why, extra=about(model))
                model.replica_history.add_recycle()
                if model.config.recycle_overlap:
                    old = replica
                    old.successor = Replica(old.init, old.environ, old.load_timeout_s)
                    model.replicas.append(old.successor)
                else:
                    replica.drain()
                return

    @staticmethod
    def _worn(model: ServedModel, replica: Replica, check_memory: bool) -> str:
        config = model.config
        if replica.state is not Phase.READY:
            return ""
        if config.max_jobs is not None and replica.jobs >= config.max_jobs:
            return f"it has run {replica.jobs} jobs (max_jobs: {config.max_jobs})"
        limit = config.max_memory_mb
        if check_memory and limit is not None and replica.jobs and not replica.outgrown:
            taken = replica.memory_mib()
            if taken > limit:
                return f"it takes {taken:.0f} MiB (max_memory_mb: {limit})"
        return ""
