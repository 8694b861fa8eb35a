"""Keeps the model processes of one worker alive: starts, watches and recycles them.

A process is recycled after `max_jobs`, or when it has grown beyond `max_memory_mb`. There is no
gap: the next one is loaded and warm before the old one takes its last batch. Where two copies do
not fit into memory (`recycle_overlap: false`) the old one ends first. One at a time, so that of
several replicas the others go on.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable
from typing import Any, Final

from headrace.observability import worker_report
from workers.models.served_model import ServedModel
from workers.observability.batch_log import about
from workers.protocol.phases import STARTING, Phase
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.replica import Replica

logger = logging.getLogger(__name__)

#: How often the memory of the processes is looked at.
MEMORY_S: Final = 1.0


class ReplicaManager:
    """The model processes of one worker.

    Args:
        selector: their sockets are registered there, with (lane, replica).
        lost: called when a process is to be given up, with its lane.
        orphan_guard: ends what they started when the worker is gone.
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
        """Do what is due: start, give up, recycle."""
        look = now >= self._memory_at
        if look:
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
            self._recycle(model, now, look)

    def due_times(self, model: ServedModel) -> list[float]:
        """The times at which something is to be done for a lane, though nothing happens."""
        return [
            replica.restart_at if replica.process is None else replica.due_at
            for replica in model.replicas
        ]

    @staticmethod
    def load_failed(model: ServedModel, replica: Replica, traceback: str) -> None:
        """A process cannot be loaded, and this is why."""
        # It is tried again and again: what was said in full before is not repeated.
        again = traceback == model.last_error
        told = traceback.rstrip().rpartition("\n")[2] if again else traceback
        logger.error("the model cannot be loaded", extra={**about(model), "traceback": told})
        model.last_error = traceback
        model.stats.count(worker_report.LOAD_FAILURES)
        replica.load_failed(traceback)

    def ready(self, model: ServedModel, replica: Replica, info: dict[str, Any]) -> None:
        """A process is loaded and warm; if it is a successor, its predecessor drains."""
        replica.ready(info)
        model.stats.count(worker_report.LOADS)
        model.stats.count(worker_report.LOAD_S, info["load_s"])
        if replica.fits:
            model.observe_memory(model.config.max_batch_size, replica.fits)
        logger.info("loaded in %.2f s", info["load_s"], extra=about(model))
        limit = model.config.max_memory_mb
        if limit is not None and (taken := replica.memory_mib()) > limit:
            logger.error(
                "loaded, it takes %d MiB, more than max_memory_mb, %d: it is not recycled for its "
                "memory; raise max_memory_mb", taken, limit, extra=about(model),
            )  # fmt: skip
            replica.outgrown = True
        for old in model.replicas:
            if old.successor is replica:
                old.drain()

    def ended(self, model: ServedModel, replica: Replica, now: float, why: str) -> None:
        """A process is gone, for whatever reason (`why`); its socket is not watched any more."""
        if replica.loaded:
            trace = replica.trace()
            model.restart_limit.add(now, f"{why}\n{trace}" if trace else why)
            model.stats.count(f"{worker_report.RESTARTS}:lost")
        if replica.process is not None:
            self._orphan_guard.forget(replica.process.pid)
        replica.ended(now)
        if replica.successor is not None:
            # Whether or not the next one is ready yet, it stands in this one's place.
            model.replicas.remove(replica)

    def stop(self, model: ServedModel, now: float) -> None:
        """End all processes of a lane; those with a batch, and those that load, at once."""
        for replica in model.replicas:
            if replica.batch is not None or replica.state in STARTING:
                replica.kill()
            else:
                replica.retire(now)

    def close(self) -> None:
        """End the guard, when all processes have ended."""
        self._orphan_guard.close()

    def _restart(self, model: ServedModel, replica: Replica, now: float) -> None:
        replica.restart_at = model.restart_limit.earliest_start(now)
        if replica.restart_at <= now:
            self._start(model, replica, now)
        else:
            told = model.restart_limit.reason(now).partition("\n")[0]
            logger.error("%s", told, extra=about(model))

    def _start(self, model: ServedModel, replica: Replica, now: float) -> None:
        model.deadlines.least_time.forget()
        frames = replica.start(now, self._orphan_guard.mark)
        if replica.process is not None:
            self._orphan_guard.watch(replica.process.pid)
        self._selector.register(frames, selectors.EVENT_READ, (model, replica))

    def _recycle(self, model: ServedModel, now: float, look: bool) -> None:
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
            why = self._worn(model, replica, look)
            if why:
                replica.recycling = why
                logger.info("a model process is recycled: %s", why, extra=about(model))
                model.recycled += 1
                model.stats.count(f"{worker_report.RESTARTS}:recycled")
                if model.config.recycle_overlap:
                    self._succeed(model, replica)
                else:
                    replica.drain()
                return

    @staticmethod
    def _worn(model: ServedModel, replica: Replica, look: bool) -> str:
        config = model.config
        if replica.state is not Phase.READY:
            return ""
        if config.max_jobs is not None and replica.jobs >= config.max_jobs:
            return f"it has run {replica.jobs} jobs (max_jobs: {config.max_jobs})"
        if look and config.max_memory_mb is not None and replica.jobs and not replica.outgrown:
            taken = replica.memory_mib()
            if taken > config.max_memory_mb:
                return f"it takes {taken:.0f} MiB (max_memory_mb: {config.max_memory_mb})"
        return ""

    @staticmethod
    def _succeed(model: ServedModel, old: Replica) -> None:
        old.successor = Replica(old.init, old.environ, old.load_timeout_s)
        model.replicas.append(old.successor)
