"""The state of the models, combined over the workers and cached for a moment."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

import msgspec

from headrace.config.model_catalog import Catalog
from headrace.errors import BrokerError
from headrace.observability.worker_report import ModelState, WorkerReport
from headrace.queue.job_queue import JobQueue

#: Seconds for which `has_ready` uses a cached state.
FRESH_S: Final = 1.0
#: A model's state is the best of its workers' states; `stopped` counts as no worker.
BEST_FIRST: Final = (
    "ready", "draining", "warming", "loading", "restarting", "failed", "stopped",
)  # fmt: skip
NO_WORKER: Final = "no-worker"
_RANKS: Final = {state: rank for rank, state in enumerate((*BEST_FIRST, NO_WORKER))}


class ServingWorker(msgspec.Struct, frozen=True):
    """One model in one worker."""

    worker: str
    pid: int
    state: ModelState


class ModelStatus(msgspec.Struct, frozen=True):
    """One model, over all workers.

    Attributes:
        state: ready, draining, warming, loading, restarting, failed, stopped or no-worker.
        ready: the number of loaded replicas.
        workers: the workers that serve it.
    """

    state: str
    ready: int
    workers: list[ServingWorker]

    @property
    def error(self) -> str:
        """The first error of a worker, with a traceback; else ""."""
        return next((served.state.error for served in self.workers if served.state.error), "")


class ModelStatuses:
    """Reads the state of all models from Redis.

    Args:
        queue: reads the workers' reports.
        catalog: the registered models.
    """

    def __init__(self, queue: JobQueue, catalog: Catalog) -> None:
        self._queue = queue
        self._catalog = catalog
        self._ready: frozenset[str] = frozenset()
        self._read_at = -FRESH_S
        self._reading: asyncio.Task[None] | None = None

    async def statuses(self) -> dict[str, ModelStatus]:
        """Read the state of every registered model.

        Raises:
            BrokerUnavailable: Redis does not answer.
        """
        return self.learn(await self._queue.worker_states())

    def learn(self, reports: dict[str, WorkerReport]) -> dict[str, ModelStatus]:
        """Return the state of every registered model by the workers' reports, and cache it."""
        serving = _serving(reports)
        statuses = {
            model.name: _status(serving.get(model.name, [])) for model in self._catalog.served
        }
        for pipeline in self._catalog.pipelines.values():
            own = statuses[pipeline.name]
            statuses[pipeline.name] = _pipeline_status(own, [statuses[m] for m in pipeline.models])
        self._ready = frozenset(name for name, status in statuses.items() if status.ready)
        self._read_at = asyncio.get_running_loop().time()
        return statuses

    async def has_ready(self, model: str) -> bool:
        """Return whether any worker has a loaded replica, as of FRESH_S seconds ago at most.

        While Redis does not answer, the last known state is used.
        """
        if asyncio.get_running_loop().time() - self._read_at > FRESH_S:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
            await asyncio.shield(self._reading)
        return model in self._ready

    async def _read(self) -> None:
        try:
            await self.statuses()
        except BrokerError:
            self._read_at = asyncio.get_running_loop().time()
        finally:
            self._reading = None


def _pipeline_status(own: ModelStatus, models: list[ModelStatus]) -> ModelStatus:
    """Return the state of a pipeline: that of its worst model, if a background worker runs it."""
    if own.state == NO_WORKER:
        return own
    worst = max(models, key=lambda status: _RANKS[status.state])
    return ModelStatus(worst.state, min(status.ready for status in models), own.workers)


def _serving(reports: dict[str, WorkerReport]) -> dict[str, list[ServingWorker]]:
    """Return the workers of each model, by the workers' names."""
    serving: defaultdict[str, list[ServingWorker]] = defaultdict(list)
    for owner, report in sorted(reports.items()):
        for name, state in report.models.items():
            serving[name].append(ServingWorker(owner, report.pid, state))
    return serving


def _status(workers: list[ServingWorker]) -> ModelStatus:
    best, ready = NO_WORKER, 0
    for served in workers:
        state = served.state
        ready += state.ready
        if _RANKS.get(state.state, len(BEST_FIRST)) < _RANKS[best]:
            best = state.state
    return ModelStatus(best, ready, workers)
