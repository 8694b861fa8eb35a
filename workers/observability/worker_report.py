"""Reports the state of a worker's models, its counters and its host, for /ready and /metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from headrace.observability.host_figures import FIELD as FIGURES
from headrace.observability.versions import running_versions
from headrace.observability.worker_report import CLOCK
from headrace.redis import keys
from headrace.redis.scripts import Arg, Command
from headrace.redis.scripts import workers as worker_scripts
from headrace.redis.traffic import TRAFFIC
from workers.models.served_model import ServedModel
from workers.protocol.phases import BEST_FIRST, Phase

_encode: Final = msgspec.json.encode


class WorkerReporter:
    """Writes the report of one worker.

    Args:
        owner: this incarnation of the worker.
        node: its Celery node name, such as gpu0@host.
        figures: returns the newest `Figures` of host, devices and model processes, as JSON.
    """

    def __init__(self, owner: str, node: str, figures: Callable[[], bytes]) -> None:
        self._owner = owner
        self._node = node
        self._figures = figures
        self._worker = _encode({"node": node, "pid": os.getpid(), "versions": running_versions()})

    def commands(self, models: Sequence[ServedModel]) -> list[Command]:
        """Return the commands that write the report, and reset the counters."""
        clock = f"{time.time():.3f}"
        fields: list[Arg] = ["", self._worker, FIGURES, self._figures(), CLOCK, clock]
        for model in models:
            fields += (model.config.name, _encode({"node": self._node, **model_report(model)}))
        counters: list[Arg] = []
        for model in models:
            stats = keys.stats(model.config.name)
            for name, by in model.stats.drain():
                counters += (stats, name, by)
        for name, count in TRAFFIC.take("worker").items():
            counters += (keys.SHARED_STATS, name, repr(count))
        return [worker_scripts.report(self._owner, fields, counters)]

    def removal(self) -> list[Command]:
        """Return the commands that remove the report, as the worker ends."""
        return [("DEL", keys.worker(self._owner)), ("ZREM", keys.WORKERS, self._owner)]


def model_report(model: ServedModel) -> dict[str, Any]:
    """Return what `/ready` and `inspect stats` show of the model."""
    states = [replica.state for replica in model.replicas]
    first_error = next((replica.error for replica in model.replicas if replica.error), "")
    if any(replica.process is None for replica in model.replicas):
        first_error = first_error or model.replica_history.wait_reason(time.monotonic())
    memory_limit = model.memory_limit
    return {
        "state": min(states, key=BEST_FIRST.index),
        "replicas": model.config.replicas,
        "ready": sum(state is Phase.READY for state in states),
        "device": model.replicas[0].init["device"],
        "error": first_error,
        "recycled": model.replica_history.recycled,
        "lost": model.replica_history.lost,
        "starved": round(model.starved, 3),
        "fits": memory_limit.limit if memory_limit.limit < memory_limit.max_size else 0,
        "pids": [r.process.pid for r in model.replicas if r.process is not None],
        "backoff_us": model.retry_policy.backoff_us,
        "since": max(replica.since for replica in model.replicas),
    }
