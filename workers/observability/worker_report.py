"""Reports the state of a worker's models, its counters and its host, for /ready and /metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from headrace.config.model.capacity import Capacity
from headrace.observability.worker_report import (
    BEST_FIRST,
    CLOCK,
    DRAINED,
    FIGURES,
    REGISTRY,
    UNLOADED,
    RegistryProgress,
    running_versions,
)
from headrace.redis import keys
from headrace.redis.fast_connection import TRAFFIC
from headrace.redis.scripts import Arg, Command, script
from workers.models.backlog import VERSION
from workers.models.served_model import Life, ServedModel
from workers.protocol.frames import Phase
from workers.replicas.cores import write_cpus
from workers.replicas.devices import threads_of

NO_CAPACITY: Final = Capacity()
_encode: Final = msgspec.json.encode
_NOTHING: Final[Mapping[str, str]] = {}


class WorkerReporter:
    """Writes the report of a worker; `figures` returns the newest `Figures` as JSON."""

    def __init__(
        self,
        owner: str,
        node: str,
        figures: Callable[[], bytes],
        labels: Sequence[str] = (),
        capacity: Capacity = NO_CAPACITY,
    ) -> None:
        self._owner = owner
        self._node = node
        self._figures = figures
        self._reported: set[str] = set()
        own = {
            "node": node,
            "pid": os.getpid(),
            "versions": running_versions(),
            "started_s": round(time.time(), 3),
        }
        self._worker = _encode({**own, "labels": labels, "capacity": capacity})

    def commands(
        self,
        models: Sequence[ServedModel],
        progress: RegistryProgress | None = None,
        unloaded: Mapping[str, str] = _NOTHING,
        *,
        drained: bool = False,
    ) -> list[Command]:
        """Return the commands that write the report, and reset the counters.

        Args:
            progress: how far the worker follows the registry.
            unloaded: the versions that it would load on demand, and the error of each.
            drained: it claims nothing, as an operator has asked.
        """
        clock = f"{time.time():.3f}"
        fields: list[Arg] = ["", self._worker, FIGURES, self._figures(), CLOCK, clock]
        if progress is not None:
            fields += (REGISTRY, _encode(progress))
        fields += (UNLOADED, _encode(unloaded), DRAINED, _encode(drained))
        reported = _reported(models)
        for name, model in reported.items():
            fields += (name, _encode({"node": self._node, **model_report(model)}))
        counters: list[Arg] = []
        for model in models:
            stats = keys.stats(model.config.name)
            for name, by in model.stats.drain():
                counters += (stats, name, by)
        for name, count in TRAFFIC.take("worker").items():
            counters += (keys.SHARED_STATS, name, repr(count))
        report = script("workers/report")
        commands = [report.call([], self._owner, len(fields), *fields, *counters)]
        if gone := self._reported - reported.keys():
            commands.append(("HDEL", keys.worker(self._owner), *gone))
        self._reported = set(reported)
        return commands

    def removal(self) -> list[Command]:
        """Return the commands that remove the report, as the worker ends."""
        return [
            ("DEL", keys.worker(self._owner), keys.drain(self._owner)),
            ("ZREM", keys.WORKERS, self._owner),
        ]


def _reported(models: Sequence[ServedModel]) -> dict[str, ServedModel]:
    """Return the models to report, each by its name.

    Of several versions, that which claims from the model's own queue has the model's name; the
    others have their version too. A model that replaces another is not reported until it serves.
    """
    reported: dict[str, ServedModel] = {}
    for model in models:
        if model.life is Life.SERVING:
            closed = model.own_closed
            reported[
                model.queues[VERSION].removeprefix(keys.queue_name) if closed else model.config.name
            ] = model
    for model in models:
        if model.life is Life.RETIRING:
            reported.setdefault(model.config.name, model)
    return reported


def model_report(model: ServedModel) -> dict[str, Any]:
    """Return what `/ready` and `inspect stats` show of the model."""
    states = [replica.state for replica in model.replicas]
    history = model.replica_history
    first_error = next((replica.error for replica in model.replicas if replica.error), "")
    if any(replica.process is None for replica in model.replicas):
        first_error = first_error or history.wait_reason(time.monotonic())
    return {
        "version": model.config.version,
        "state": min(states, key=BEST_FIRST.index) if states else Phase.STOPPED,
        "replicas": model.config.replicas,
        "total_replicas": model.config.total_replicas,
        "ready": sum(state is Phase.READY for state in states),
        "device": model.device,
        "error": model.update_error or first_error,
        "held": len(model.held),
        "loads": model.loads,
        "recycled": history.recycled,
        "lost": history.lost,
        "starved": round(model.starved, 3),
        "fits": model.fits,
        "threads": threads_of(model.template.environ),
        "cpus": [
            write_cpus(r.core_set) for r in model.replicas if r.process is not None and r.core_set
        ],
        "variant": next((r.variant for r in model.replicas if r.variant), ""),
        "preprocess": next((r.preprocess for r in model.replicas if r.preprocess), ""),
        "yields": any(replica.yields for replica in model.replicas),
        "memory_mib": round(model.load_mib),
        "pids": [r.process.pid for r in model.replicas if r.process is not None],
        "processes": [
            (r.process.pid, r.state, r.since) for r in model.replicas if r.process is not None
        ],
        "backoff_us": model.retry_policy.backoff_us,
        "since": max((replica.since for replica in model.replicas), default=0.0),
        "generation": _generation(model) if model.continuous else None,
    }


def _generation(model: ServedModel) -> list[int]:
    """Return what the generators of all replicas do together, as a `GenerationState`."""
    states = [replica.generation for replica in model.replicas if replica.process is not None]
    return [sum(column) for column in zip(*map(astuple, states), strict=True)]
