"""The metrics of one worker for TorchServe's interfaces: of its batches, its handlers and its host.

They are kept while batches run. One write has the lines of several batches. Redis gets the totals
when a batch has ended, at most every WRITE_S seconds, so that a client that has its answer finds
them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from extensions.torchserve.config import metrics_config as m
from extensions.torchserve.config.settings import TorchServeConfig, read_config
from extensions.torchserve.metrics.recorder import (
    HOST,
    TorchServeMetrics,
    device_values,
    host_values,
    metrics_output,
    version_labels,
    worker_name,
)
from extensions.torchserve.redis import script
from headrace.errors import last_line
from headrace.observability.worker_report import Figures
from headrace.redis.scripts import Command, Script
from workers.extension import Observer
from workers.jobs.leased_job import Batch
from workers.models.served_model import ServedModel
from workers.replicas.replica import LOAD_TOO_LONG, Replica

#: The numbers of the model processes of a worker begin at its own number times this one.
_WORKERS_APART: Final = 100
#: How long totals may wait for those of further batches, in seconds.
WRITE_S: Final = 0.05
_NEVER: Final = float("inf")
#: TorchServe's words for a load that fails, and for one that is too slow. Scripts look for them.
_DIED: Final = "Backend worker process died."
_TOO_SLOW: Final = (
    "Backend worker error\norg.pytorch.serve.wlm.WorkerInitializationException: Backend worker did "
    "not respond in given time"
)


class WorkerMetrics(Observer):
    """Takes what happens in one worker. Used by the thread of its consumer.

    Args:
        figures: returns the newest figures of the host and the GPUs.
        environ: the environment of the worker, with its number among those of its host.
    """

    def __init__(
        self,
        metrics: TorchServeMetrics,
        config: TorchServeConfig,
        figures: Callable[[], Figures],
        environ: Mapping[str, str],
    ) -> None:
        self._metrics = metrics
        self._figures = figures
        # The number of the worker among those of its host, a slash, and how many there are.
        share = environ.get("HEADRACE_WORKER_SHARE", "").partition("/")[0]
        self._place = int(share) if share.isdecimal() else 0
        # Where Redis has the totals, `/metrics` takes the host from the reports of the workers.
        shown = not config.disable_system_metrics and config.metrics_mode != "prometheus"
        self._interval_s = max(1, config.metric_time_interval) if shown else _NEVER
        self._host_at = 0.0 if shown else _NEVER
        self._written_at = 0.0
        self.due_at = _NEVER
        self.scripts: Sequence[Script] = [script("metrics")]

    @override
    def loaded(self, model: ServedModel, replica: Replica, load_s: float) -> None:
        name = self._name(model, replica)
        self._metrics.add(
            m.WORKER_LOAD_TIME,
            float(int(load_s * 1000)),
            (("WorkerName", name), *HOST),
            model=model.config.name,
            thread=name,
        )
        self._changed()

    @override
    def load_failed(self, traceback: str) -> str:
        words = _TOO_SLOW if LOAD_TOO_LONG in last_line(traceback) else _DIED
        return f"{words}\n{traceback}"

    @override
    def reported(self, model: ServedModel, replica: Replica, rows: Sequence[Any]) -> None:
        name = self._name(model, replica)
        for row in rows:
            self._metrics.add_of_handler(model.config.name, row, name)
        self._changed()

    @override
    def finished(
        self, model: ServedModel, batch: Batch, outcomes: Sequence[Any], times: Sequence[float],
        now: float,
    ) -> None:  # fmt: skip
        add, name = self._metrics.add, model.config.name
        queued_us: Counter[str] = Counter()
        took_us: Counter[str] = Counter()
        queue_ms = []
        for job, outcome in zip(batch.jobs, outcomes, strict=True):
            if not outcome[0] or job.message is None:
                continue
            version, queued_s = job.message.version, job.dispatched_at - job.enqueued_at
            queued_us[version] += int(queued_s * 1e6)
            took_us[version] += int((now - job.enqueued_at) * 1e6)
            queue_ms.append(float(int(queued_s * 1000)))
        self._metrics.add_each(m.QUEUE_TIME, queue_ms)
        for counter, found in ((m.INFERENCE_LATENCY, took_us), (m.QUEUE_LATENCY, queued_us)):
            for version, us in found.items():
                add(counter, float(us), version_labels(name, version), model=name)
        ran_ms = (now - batch.started_at) * 1000 - sum(times[:3])
        add(m.WORKER_THREAD_TIME, float(max(0, int(ran_ms))))
        self._changed()

    def _changed(self) -> None:
        self._metrics.flush_later()
        self.due_at = min(self.due_at, self._written_at + WRITE_S)

    @override
    def commands(self, models: Sequence[ServedModel]) -> list[Command]:
        now = time.monotonic()
        if now >= self._host_at:
            self._host_at = now + self._interval_s
            self._show_host()
        self._metrics.flush()
        return self.totals(models)

    @override
    def totals(self, models: Sequence[ServedModel]) -> list[Command]:
        self._written_at, self.due_at = time.monotonic(), _NEVER
        _, command = self._metrics.totals.take({model.config.name for model in models})
        return [command] if command is not None else []

    def _show_host(self) -> None:
        figures = self._figures()
        if figures.host is None:
            self._host_at = 0.0  # not measured yet
            return
        values = list(device_values(figures))
        if self._place == 0:
            values = [*host_values(figures.host), *values]
        for name, value, labels in values:
            self._metrics.add(name, value, labels)

    def _name(self, model: ServedModel, replica: Replica) -> str:
        number = model.replicas.index(replica) if replica in model.replicas else 0
        number += self._place * _WORKERS_APART
        return worker_name(number, model.config.name, model.config.version)


def build(file: Path, log_format: str, figures: Callable[[], Figures]) -> WorkerMetrics:
    """Return what takes the metrics of a worker.

    Raises:
        ConfigError: the configuration cannot be read.
    """
    config = read_config(file)
    metrics = TorchServeMetrics(config, "worker", metrics_output(log_format))
    return WorkerMetrics(metrics, config, figures, os.environ)
