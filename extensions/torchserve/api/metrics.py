"""The metrics interface: `/metrics` in TorchServe's text format.

The figures of all processes and hosts are in Redis, so any API process gives the same answer. The
format is that of Java's client of Prometheus, which prometheus-client does not write: labels end
with a comma, and a counter keeps its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from api.http.messages import Reply, Request
from api.services import Services
from extensions.torchserve.api.parts import Parts, config_of
from extensions.torchserve.config.metrics_config import BUCKETS, LEGACY, MetricSpec, MetricType
from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.logs.lines import Labels, number
from extensions.torchserve.metrics.recorder import device_values, host_values, version_labels
from extensions.torchserve.metrics.totals import Series, merged
from extensions.torchserve.redis.keys import METRICS, metrics
from headrace.config.model.catalog import ModelConfig
from headrace.observability.worker_report import WorkerReport
from headrace.queue.job_queue import Depth, read_depths
from headrace.redis import keys
from headrace.redis.script_client import AsyncScriptClient
from headrace.redis.scripts import queues as queue_scripts

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_VERSION: Final = ("model_name", "model_version")
#: What TorchServe lacks: how much waits and runs, for autoscaling.
DEPTH: Final = MetricSpec("ts_queue_depth", MetricType.GAUGE, "Count", _VERSION)
OLDEST: Final = MetricSpec("ts_queue_oldest_age_seconds", MetricType.GAUGE, "Seconds", _VERSION)
IN_FLIGHT: Final = MetricSpec("ts_requests_in_flight", MetricType.GAUGE, "Count", _VERSION)
_ADDED: Final = (DEPTH, OLDEST, IN_FLIGHT)
_BOUNDS: Final = (*map(number, BUCKETS), "+Inf")


async def get_metrics(services: Services, request: Request, *_below: str) -> Reply:
    """Return the metrics, also for a path below; none in the mode `log`.

    Raises:
        BrokerError: Redis does not answer.
    """
    config = config_of(services)
    if config.metrics_mode == "log":
        return Reply(200, b"", CONTENT_TYPE)
    reporter = services.of(Parts).reporter
    await reporter.report()
    specs = [
        spec
        for spec in reporter.specs.values()
        if config.metrics_mode == "prometheus" or spec.name in LEGACY
    ]
    known = frozenset(spec.name for spec in specs)
    shown = [
        one
        for one in await _read(services)
        if config.metrics_mode == "prometheus" or one.name in known
    ]
    shown += _measured(await _hosts(services, config), reporter.specs)
    shown += _queues(services.catalog.served, await _depths(services))
    names = parse_qs(request.query_string.decode("latin-1")).get("name[]", ())
    return Reply(200, text_of((*specs, *_ADDED), shown, names), CONTENT_TYPE)


async def _read(services: Services) -> list[Series]:
    redis = AsyncScriptClient(services.client)
    [members] = await redis.read_all([("ZRANGE", METRICS, 0, -1)])
    names = sorted(raw.decode("utf-8", "replace") for raw in members)
    commands = [("HGETALL", metrics(name)) for name in names]
    replies: list[Any] = await redis.read_all(commands)
    return merged(zip(names, replies, strict=True))


async def _hosts(services: Services, config: TorchServeConfig) -> Mapping[str, WorkerReport]:
    if config.disable_system_metrics or config.metrics_mode != "prometheus":
        return {}
    return (await services.scraper.read()).workers


async def _depths(services: Services) -> Mapping[str, Depth]:
    queues = [
        queue
        for model in services.catalog.served
        for queue in (
            model.queue,
            *(
                keys.version_queue(model.name, version)
                for version in services.catalog.versions.get(model.name) or (model.version,)
            ),
        )
    ]
    reply = await AsyncScriptClient(services.client).call(queue_scripts.depth(queues))
    return {one.queue: one for one in read_depths(queues, reply)}


def _measured(
    workers: Mapping[str, WorkerReport], specs: Mapping[str, MetricSpec]
) -> Iterator[Series]:
    # Several workers may measure the same host, and may share a GPU.
    found: dict[tuple[str, Labels], float] = {}
    for worker in workers.values():
        figures = worker.figures
        if figures.host is not None:
            for name, value, labels in (*host_values(figures.host), *device_values(figures)):
                if spec := specs.get(name):
                    found[name, (*labels, (spec.host, figures.host.name))] = value
    for (name, labels), value in found.items():
        yield Series(name, MetricType.GAUGE, specs[name].unit, labels, (value,))


def _queues(models: Iterable[ModelConfig], depths: Mapping[str, Depth]) -> Iterator[Series]:
    """Yield what waits and runs: jobs that name no version, then those of each version."""
    for model in models:
        own = depths[model.queue]
        prefix = f"{model.queue}{keys.VERSION_SEPARATOR}"
        versions = {
            queue.removeprefix(prefix): one
            for queue, one in depths.items()
            if queue.startswith(prefix)
        }
        yield from _of_version(model.name, "", own, versions.values())
        for version, depth in versions.items():
            yield from _of_version(model.name, version, depth, ())


def _of_version(
    model: str, version: str, depth: Depth, others: Collection[Depth]
) -> Iterator[Series]:
    """Yield the series of one version; the numbers of `others` are part of those of `depth`."""
    labels = version_labels(model, version)
    waiting = {
        step: max(0, count - sum(other.waiting[step] for other in others))
        for step, count in depth.waiting.items()
    }
    ages = [age for step, age in depth.oldest_ages_s.items() if waiting[step]]
    in_flight = max(0, depth.in_flight - sum(other.in_flight for other in others))
    for spec, value in (
        (DEPTH, sum(waiting.values())),
        (OLDEST, max(ages, default=0.0)),
        (IN_FLIGHT, in_flight),
    ):
        yield Series(spec.name, spec.type, spec.unit, labels, (float(value),))


def text_of(
    families: Iterable[MetricSpec], series: Iterable[Series], names: Collection[str] = ()
) -> bytes:
    """Return metrics in the text format.

    Args:
        families: what is shown also without series, in this order.
        names: the samples that are shown; empty for all. A metric without one is left out.
    """
    found = {spec.name: (spec.type, spec.unit, list[Series]()) for spec in families}
    for one in series:
        kind, _, listed = found.setdefault(one.name, (one.type, one.unit, []))
        if kind is one.type:
            listed.append(one)
    lines = []
    for name, (kind, unit, listed) in found.items():
        samples = [
            f"{sample}{{{_labels(labels)}}} {number(value)}\n"
            for one in listed
            for sample, labels, value in _samples(one)
            if not names or sample in names or name in names
        ]
        if samples or not names:
            lines.append(f"# HELP {name} Torchserve prometheus {kind} metric with unit: {unit}\n")
            lines.append(f"# TYPE {name} {kind}\n")
            lines += samples
    return "".join(lines).encode()


def _samples(one: Series) -> Iterator[tuple[str, Labels, float]]:
    if one.type is not MetricType.HISTOGRAM:
        yield one.name, one.labels, one.values[0]
        return
    *counts, total = one.values
    if len(counts) == len(_BOUNDS):
        for bound, count in zip(_BOUNDS, counts, strict=True):
            yield f"{one.name}_bucket", (*one.labels, ("le", bound)), count
        yield f"{one.name}_count", one.labels, counts[-1]
        yield f"{one.name}_sum", one.labels, total


def _labels(labels: Labels) -> str:
    return "".join(f'{name}="{value.translate(_ESCAPES)}",' for name, value in labels)
