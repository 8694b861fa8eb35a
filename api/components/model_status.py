"""The state of the models, combined over the workers and cached for a moment."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, Final

import msgspec

from headrace.config.model.capacity import Host, Needs, needs_of, why_no_worker
from headrace.config.model.catalog import Catalog, ModelConfig
from headrace.errors import BrokerError, last_line
from headrace.jobs.ids import VERSION
from headrace.observability.worker_report import (
    BEST_FIRST,
    UNLOADED_STATE,
    ModelState,
    WorkerReport,
)
from headrace.queue.job_queue import JobQueue
from headrace.redis.keys import VERSION_SEPARATOR
from headrace.schema.serialization import Waiting

#: Seconds for which a cached state is used.
FRESH_S: Final = 1.0
#: Seconds between two looks for a request that waits for the load of a model.
LOAD_LOOK_S: Final = 15.0
NO_WORKER: Final = "no-worker"
ModelStateName = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [*BEST_FIRST, NO_WORKER]})]
_RANKS: Final = {state: rank for rank, state in enumerate((*BEST_FIRST, NO_WORKER))}
#: The states of a model in a worker that runs none of its processes, and starts none.
_ENDED: Final = frozenset({"failed", "stopped"})
#: Seconds for which a version counts as served after its last worker was seen: one may restart.
VERSION_KEPT_S: Final = 300.0
_VERSION: Final = re.compile(VERSION)


class ServingWorker(msgspec.Struct, frozen=True):
    """One model in one worker."""

    worker: str
    pid: int
    state: ModelState
    labels: list[str]


class ModelStatus(msgspec.Struct, frozen=True):
    """One model, over all workers; `problem` is why no worker can load it on demand."""

    state: ModelStateName
    ready: int
    workers: list[ServingWorker]
    problem: str = ""

    @property
    def error(self) -> str:
        """The first error of a worker, with a traceback; else ""."""
        errors = (served.state.error for served in self.workers if served.state.error)
        return next(errors, self.problem)


class ModelStatuses:
    """Reads the state of all models from Redis."""

    def __init__(self, queue: JobQueue, catalog: Catalog) -> None:
        self._queue = queue
        self._catalog = catalog
        self._latest: dict[str, ModelStatus] = {}
        # The models, and the pairs of model and version, with a loaded replica.
        self._ready: frozenset[str | tuple[str, str]] = frozenset()
        # The models that a worker has, loaded or not.
        self._taken: frozenset[str] = frozenset()
        # When a worker was last seen with this version of a model (model, version, worker); and the
        # models for jobs that ask for one.
        self._seen: dict[tuple[str, str, str], float] = {}
        self._reported: dict[str, list[str]] = {}
        self._asked: dict[tuple[str, str], ModelConfig] = {}
        # Each live worker, by its node name.
        self._hosts: dict[str, Host] = {}
        self._read_at = -FRESH_S
        self._reading: asyncio.Task[None] | None = None

    async def statuses(self) -> dict[str, ModelStatus]:
        """Read the state of every registered model; raise BrokerUnavailable without Redis."""
        return self.learn(await self._queue.worker_states())

    def learn(self, reports: dict[str, WorkerReport]) -> dict[str, ModelStatus]:
        """Return the state of every registered model by the workers' reports, and cache it."""
        self._hosts = {
            worker.node: Host(worker.labels, worker.capacity)
            for worker in reports.values()
            if worker.node
        }
        serving, unloaded = _serving(reports), _unloaded(reports)
        statuses = {
            model.name: _status(serving.get(model.name, []), unloaded.get(model.name))
            for model in self._catalog.served
        }
        self._taken = frozenset(n for n, status in statuses.items() if status.state != NO_WORKER)
        for pipeline in self._catalog.pipelines.values():
            own = statuses[pipeline.name]
            statuses[pipeline.name] = _pipeline_status(own, [statuses[m] for m in pipeline.models])
        self._latest = statuses
        self._read_at = now = asyncio.get_running_loop().time()
        ready: set[str | tuple[str, str]] = {n for n, status in statuses.items() if status.ready}
        for name, status in statuses.items():
            for served in status.workers:
                state = served.state
                if _VERSION.fullmatch(state.version):
                    self._seen[name, state.version, served.worker] = now
                if state.ready:
                    ready.add((name, state.version))
        self._ready = frozenset(ready)
        # A worker that is gone may come back. One that has ended a version has not it any more.
        self._seen = {
            key: at
            for key, at in self._seen.items()
            if now - at <= (0 if key[2] in reports else VERSION_KEPT_S)
        }
        known = {key[:2] for key in self._seen}
        self._reported = {
            name: [version for _, version in group]
            for name, group in groupby(sorted(known), key=itemgetter(0))
        }
        self._asked = {key: model for key, model in self._asked.items() if key in known}
        return statuses

    def why_unserved(self, model: str, version: str, options: Mapping[str, Any]) -> str | None:
        """Return in words why no worker takes a registered version; None if one can.

        `options` are those in the registry; those of its source are not among them.
        """
        config = self._catalog.versions.get(model, {}).get(version)
        return why_no_worker(needs_of(config or Needs(), options), self._hosts) or None

    def why_unfit(self, model: ModelConfig) -> str | None:
        """Return in words why no live worker can host a model; None if one can."""
        if model.name in self._catalog.pipelines:
            return None
        return why_no_worker(needs_of(model), self._hosts) or None

    def why_stopped(self, model: ModelConfig) -> str | None:
        """Return in words why no model process will take a model's jobs; None if one may.

        It has none by its options, or all have failed to load. A worker that is gone may come back.
        """
        name, version = model.name, model.asked_version
        if ((name, version) if version else name) in self._ready:
            return None
        if model.has_no_replicas:
            return "it has 0 replicas"
        error = self._load_error(model) if self._states(model) else ""
        return f"it cannot be loaded: {error}" if error else None

    def is_served(self, model: ModelConfig) -> bool:
        """Return whether a model has a model process, or one that loads, as by its options."""
        if model.has_no_replicas:
            return True
        latest = self._latest.get(model.name)
        if model.on_demand and latest is not None and latest.state == UNLOADED_STATE:
            return True
        return any(state.state not in _ENDED for state in self._states(model))

    def _states(self, model: ModelConfig) -> list[ModelState]:
        """Return the states of a model in the workers that have its version."""
        latest = self._latest.get(model.name)
        states = [worker.state for worker in latest.workers] if latest is not None else []
        return [state for state in states if state.version in ("", model.version)]

    def versions(self, model: ModelConfig) -> list[str]:
        """Return the versions that jobs may ask for: the declared one, then those of workers."""
        if model.name in self._catalog.pipelines:
            return [model.version]
        seen = self._reported.get(model.name, ())
        registered = self._catalog.versions.get(model.name, ())
        return list(dict.fromkeys([model.version, *registered, *seen]))

    def for_version(self, model: ModelConfig, version: str) -> ModelConfig:
        """Return the model with the queue of one of its `versions`; a pipeline has one queue."""
        name = model.name
        if name in self._catalog.pipelines and version == model.version:
            return model
        registered = self._catalog.versions.get(name, {}).get(version)
        if registered is not None:
            return registered.of_version(version)
        if (name, version) not in self._asked:
            self._asked[name, version] = model.of_version(version)
        return self._asked[name, version]

    async def waiting_for(self, model: str, version: str = "") -> Waiting | None:
        """Return what a queued job of a `version` waits for; None if a replica is loaded."""
        await self.refresh()
        if ((model, version) if version else model) in self._ready:
            return None
        config = self._config(model, version)
        reason = "" if config is None else self._why_not_loaded(config)
        if config is None or not config.on_demand or model not in self._taken:
            return Waiting("replica", reason)
        return Waiting("load", reason)

    async def load_error(self, model: str, version: str) -> str:
        """Return the error with which no worker can load a model; "" if one can, or none runs."""
        await self.refresh()
        config = self._config(model, version)
        if config is None or ((model, version) if version else model) in self._ready:
            return ""
        return self._load_error(config)

    async def load_failed(self, model: str, version: str = "") -> str:
        """Wait until no worker can load a model; return the error."""
        while True:
            await asyncio.sleep(LOAD_LOOK_S)
            if error := await self.load_error(model, version):
                return error

    def _config(self, model: str, version: str) -> ModelConfig | None:
        config = self._catalog.models.get(model)
        if version:
            config = self._catalog.versions.get(model, {}).get(version, config)
        return config

    def _why_not_loaded(self, model: ModelConfig) -> str:
        """Return in words why no worker can load a model; "" if one can."""
        if reason := self.why_stopped(model) or self.why_unfit(model):
            return reason
        error = self._load_error(model)
        return f"it cannot be loaded: {error}" if error else ""

    def _load_error(self, model: ModelConfig) -> str:
        """Return the last line of the error of a model that no worker has loaded or loads."""
        states = self._states(model)
        if any(state.state not in _ENDED for state in states):
            return ""
        status = self._latest.get(model.name)
        errors = [state.error for state in states if state.state == "failed"]
        if not states and status is not None:
            errors = [status.problem]
        return last_line(errors[0]) if errors and errors[0] else ""

    def ready_replicas(self, model: str) -> int:
        """Return how many replicas of a model are loaded, as it was last read."""
        status = self._latest.get(model)
        return status.ready if status is not None else 0

    async def refresh(self) -> None:
        """Read the state of the models, unless it was read less than FRESH_S seconds ago.

        While Redis does not answer, the last known state is used.
        """
        if asyncio.get_running_loop().time() - self._read_at > FRESH_S:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
            await asyncio.shield(self._reading)

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
            if report.drained:
                # Its processes are loaded, and get no jobs.
                best = "draining" if state.state == "ready" else state.state
                state = msgspec.structs.replace(state, ready=0, state=best)
            # Of several versions in one worker, those that are not the default one have both names.
            serving[name.partition(VERSION_SEPARATOR)[0]].append(
                ServingWorker(owner, report.pid, state, report.labels)
            )
    return serving


def _unloaded(reports: dict[str, WorkerReport]) -> dict[str, str]:
    """Return the models that a worker loads on demand, and why it cannot; "" if one can."""
    problems: dict[str, str] = {}
    for report in reports.values():
        for label, problem in report.unloaded.items():
            name = label.partition(VERSION_SEPARATOR)[0]
            problems[name] = problem and problems.get(name, problem)
    return problems


def _status(workers: list[ServingWorker], unloaded: str | None = None) -> ModelStatus:
    """Return the state of a model.

    `unloaded` is why no worker can load it on demand; "" if one can, None if none would.
    """
    best, ready = NO_WORKER, 0
    if unloaded is not None:
        best = "failed" if unloaded else UNLOADED_STATE
    for served in workers:
        state = served.state
        ready += state.ready
        if _RANKS.get(state.state, len(BEST_FIRST)) < _RANKS[best]:
            best = state.state
    return ModelStatus(best, ready, workers, unloaded or "")
