"""What Redis knows of queues and models, as metrics of one scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from api.fleet import ModelStatus
from api.services import Services
from headrace.errors import BrokerError, QueueFull
from headrace.queue import Depth
from headrace.telemetry import HISTOGRAMS, ModelTotals

_HELP = {
    "batch_size": "Jobs that ran together.",
    "queue_seconds": "Seconds from a job's submit to its hand-over to the model process.",
    "inference_seconds": "Seconds that the handler took for a batch, all verbs together.",
}


@dataclass(slots=True)
class Snapshot(Collector):
    """The metrics of one scrape. Without Redis only `headrace_broker_up` is told.

    Attributes:
        waiting: requests that wait for a job, in all of the API's processes.
    """

    broker_up: bool
    waiting: int = 0
    depths: dict[str, Depth] = field(default_factory=dict)
    statuses: dict[str, ModelStatus] = field(default_factory=dict)
    totals: dict[str, ModelTotals] = field(default_factory=dict)

    @override
    def collect(self) -> Iterator[Metric]:
        """Every metric, by model."""
        up = GaugeMetricFamily("headrace_broker_up", "Whether Redis answered this scrape.")
        up.add_metric([], float(self.broker_up))
        yield up
        if not self.broker_up:
            return
        waiting = GaugeMetricFamily(
            "headrace_requests_waiting", "Requests that wait for a job's end."
        )
        waiting.add_metric([], self.waiting)
        yield waiting
        yield from self._submits()
        yield from self._queues()
        yield from self._models()

    def _submits(self) -> Iterator[Metric]:
        admitted = CounterMetricFamily(
            "headrace_jobs_admitted", "Jobs that were enqueued over HTTP.", labels=["model"]
        )
        rejected = CounterMetricFamily(
            "headrace_jobs_rejected",
            "Submits that were refused, by the code of the problem.",
            labels=["model", "reason"],
        )
        for model, totals in self.totals.items():
            admitted.add_metric([model], totals.admitted)
            for reason, count in {QueueFull.code: 0.0, **totals.rejected}.items():
                rejected.add_metric([model, reason], count)
        yield admitted
        yield rejected

    def _queues(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "headrace_queue_depth", "Jobs that wait, by priority.", labels=["model", "priority"]
        )
        for model, queue in self.depths.items():
            for step, count in queue.waiting.items():
                depth.add_metric([model, str(step)], count)
        yield depth
        depths = self.depths.items()
        yield _gauge(
            "headrace_queue_oldest_age_seconds",
            "How long the oldest waiting job has waited; 0 when none waits.",
            ((model, queue.oldest_age_s or 0.0) for model, queue in depths),
        )
        yield _gauge(
            "headrace_jobs_in_flight",
            "Jobs that workers hold.",
            ((model, queue.in_flight) for model, queue in depths),
        )
        yield _gauge(
            "headrace_jobs_scheduled",
            "Jobs that wait for a countdown or a retry.",
            ((model, queue.scheduled) for model, queue in depths),
        )
        yield _gauge(
            "headrace_dead_letters",
            "Messages and jobs among the dead letters.",
            ((model, queue.dead) for model, queue in depths),
        )

    def _models(self) -> Iterator[Metric]:
        yield _gauge(
            "headrace_model_ready_replicas",
            "Replicas that are loaded, over all workers.",
            ((model, status.ready) for model, status in self.statuses.items()),
        )
        ended = CounterMetricFamily(
            "headrace_jobs_ended", "Jobs that have ended.", labels=["model", "status"]
        )
        for model, totals in self.totals.items():
            for status, count in totals.ended.items():
                ended.add_metric([model, status], count)
        yield ended
        yield from self._batches()
        for name in HISTOGRAMS:
            family = HistogramMetricFamily(f"headrace_{name}", _HELP[name], labels=["model"])
            for model, totals in self.totals.items():
                histogram = totals.histograms[name]
                family.add_metric([model], buckets=histogram.buckets, sum_value=histogram.sum)
            yield family

    def _batches(self) -> Iterator[Metric]:
        left = CounterMetricFamily(
            "headrace_batches", "Batches, by why they left.", labels=["model", "reason"]
        )
        padding = CounterMetricFamily(
            "headrace_batch_padding",
            "Inputs that were added to batches to reach an allowed size.",
            labels=["model"],
        )
        starved = CounterMetricFamily(
            "headrace_device_starved_seconds",
            "Seconds for which the device waited for a batch that was still in preprocess.",
            labels=["model"],
        )
        for model, totals in self.totals.items():
            starved.add_metric([model], totals.starved_s)
            for reason, count in totals.left.items():
                left.add_metric([model, reason], count)
            padding.add_metric([model], totals.padding)
        yield left
        yield padding
        yield starved


def _gauge(name: str, text: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["model"])
    for model, value in values:
        family.add_metric([model], value)
    return family


async def read_snapshot(services: Services) -> Snapshot:
    """Ask Redis; a scrape must not fail with it, or the outage itself could not be seen."""
    models = list(services.catalog.models.values())
    try:
        waiting = await services.tally.waiting()
        depths = await services.queue.depths([model.queue for model in models])
        statuses = await services.fleet.statuses()
        totals = await services.queue.totals([model.name for model in models])
    except BrokerError:
        return Snapshot(broker_up=False)
    by_model = {model.name: depth for model, depth in zip(models, depths, strict=True)}
    return Snapshot(True, waiting, by_model, statuses, totals)
