"""The metrics of one scrape: queues, models, workers and hosts, as read from Redis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from api.components import demand
from api.components.model_status import ModelStatus
from api.observability import metric_families as f
from api.observability.counters import REQUESTS
from api.observability.exposition import Labels, MetricSamples
from api.observability.metric_families import Family
from api.services import Services
from headrace import __version__
from headrace.errors import BrokerError
from headrace.observability import worker_report
from headrace.observability.totals import (
    BOUNDS,
    ZERO,
    Column,
    Fields,
    Totals,
    counted,
    histogram,
    read_labelled,
)
from headrace.observability.worker_report import (
    UNLOADED_STATE,
    DeviceFigures,
    HostFigures,
    ShadowResult,
    WorkerReport,
    field_of,
)
from headrace.queue.job_queue import Depths
from headrace.queue.scrape import ScrapeResult
from headrace.queue.webhook_deliveries import COUNTER as WEBHOOKS
from headrace.queue.webhook_deliveries import OUTCOMES as WEBHOOK_OUTCOMES
from headrace.redis import keys
from headrace.redis.fast_connection import ERRORS, ROUND_TRIPS

#: The name and version of each model.
Models = tuple[tuple[str, str], ...]
#: The label `model` of each model.
Names = tuple[tuple[str], ...]

_PARTS: Final = ("api", "worker")
#: Counted with the ends, but a metric of its own.
_RETRIED: Final = f"{worker_report.ENDED}:{worker_report.RETRIED}"


async def metrics_of(services: Services) -> Iterable[MetricSamples]:
    """Return the metrics; an outage of Redis is a metric, not a failed scrape."""
    try:
        scraped = await services.scraper.read()
    except BrokerError:
        return [_one(f.BROKER_UP, 0), _one(f.BUILD, 1, (__version__,))]
    statuses = services.model_statuses.learn(scraped.workers)
    models = tuple((model.name, model.version) for model in services.catalog.served)
    waiting = services.counter_reporter.waiting(scraped.waiting)
    shadows = tuple(
        (model.name, model.traffic.shadow)
        for model in services.catalog.served
        if model.traffic is not None and model.traffic.shadow is not None
    )
    return _all(scraped, statuses, models, waiting, shadows)


def _all(
    scraped: ScrapeResult,
    statuses: Mapping[str, ModelStatus],
    models: Models,
    waiting: int,
    shadows: Models,
) -> Iterator[MetricSamples]:
    names = tuple((name,) for name, _ in models)
    yield _one(f.BROKER_UP, 1)
    yield _one(f.BUILD, 1, (__version__,))
    yield _one(f.WORKERS, len(scraped.workers))
    yield _one(f.WAITING, waiting)
    yield _one(f.BACKGROUND_TASKS, scraped.background_tasks)
    yield _one(f.WEBHOOKS_PENDING, scraped.webhooks)
    if scraped.memory is not None:
        used, limit = scraped.memory
        yield _one(f.REDIS_MEMORY, used)
        yield _one(f.REDIS_LIMIT, limit)
    yield from _queues(scraped.depths, names, models)
    yield from _demand(scraped, names)
    yield MetricSamples(f.PAUSED, names, list(map(int, scraped.paused)))
    yield from _counted(scraped.counted, names)
    yield from _versions(scraped.counted, models)
    yield _shadows(scraped.counted, names, shadows)
    yield from _models(statuses, scraped.counted, names)
    yield from _generation(statuses, scraped.counted, names)
    yield from _shared(scraped.shared)
    yield from _measured(list(scraped.workers.values()))


def _queues(depths: Depths, names: Names, models: Models) -> Iterator[MetricSamples]:
    labels = [(name, version, str(step)) for step in keys.STEPS for name, version in models]
    yield MetricSamples(f.DEPTH, labels, list(chain.from_iterable(depths.waiting)))
    yield MetricSamples(f.OLDEST, labels, list(chain.from_iterable(depths.oldest_ages_s)))
    yield MetricSamples(f.TOKENS, names, depths.tokens)
    yield MetricSamples(f.IN_FLIGHT, names, depths.in_flight)
    yield MetricSamples(f.SCHEDULED, names, depths.scheduled)
    yield MetricSamples(f.DEAD_LETTERS, names, depths.dead)


def _demand(scraped: ScrapeResult, names: Names) -> Iterator[MetricSamples]:
    depths = scraped.depths
    jobs = [
        demand.demand_of(sum(waiting), due, in_flight, paused)
        for waiting, due, in_flight, paused in zip(
            zip(*depths.waiting, strict=True),
            depths.due,
            depths.in_flight,
            scraped.paused,
            strict=True,
        )
    ]
    columns = [scraped.counted.column(field) for field in demand.FIELDS]
    seconds = [
        demand.demand_seconds(count, demand.seconds_per_job(*row))
        for count, row in zip(jobs, zip(*columns, strict=True), strict=True)
    ]
    known = [(name, value) for name, value in zip(names, seconds, strict=True) if value is not None]
    yield MetricSamples(f.DEMAND, names, jobs)
    yield MetricSamples(f.DEMAND_S, [name for name, _ in known], [value for _, value in known])


def _counted(totals: Totals, names: Names) -> Iterator[MetricSamples]:
    for name, family in f.COUNTED.items():
        yield MetricSamples(family, names, counted(totals.column(name)))
    yield MetricSamples(f.RETRIED, names, counted(totals.column(_RETRIED)))
    for name, (family, always) in f.LABELLED.items():
        columns = totals.labelled(name)
        if name == worker_report.ENDED:
            columns.pop(worker_report.RETRIED, None)
        series: list[Labels] = []
        values: list[bytes] = []
        for value in dict.fromkeys((*always, *columns)):
            labels, column = [(*name, value) for name in names], columns.get(value, totals.none)
            if value not in always and None in column:
                present = [n for n, raw in enumerate(column) if raw is not None]
                labels, column = [labels[n] for n in present], [column[n] for n in present]
            series += labels
            values += counted(column)
        yield MetricSamples(family, series, values)
    for name, family in f.HISTOGRAMS.items():
        yield MetricSamples(family, names, histogram(totals, name), BOUNDS[name])


def _versions(totals: Totals, models: Models) -> Iterator[MetricSamples]:
    """Yield the jobs by version, those of default versions from the first scrape on."""
    counts: dict[Labels, bytes] = dict.fromkeys(models, ZERO)
    for version, column in totals.labelled(worker_report.ADMITTED_VERSION).items():
        for (model, _), raw in zip(models, column, strict=True):
            if raw is not None:
                counts[model, version] = raw
    yield MetricSamples(f.VERSION_ADMITTED, list(counts), counted(tuple(counts.values())))


def _shadows(totals: Totals, names: Names, shadows: Models) -> MetricSamples:
    """Return how copies of jobs compare, those of present shadow versions from zero on."""
    counts: dict[Labels, bytes] = {
        (model, version, str(result)): ZERO for model, version in shadows for result in ShadowResult
    }
    for label, column in totals.labelled(worker_report.SHADOW).items():
        result, _, version = label.partition(" ")
        for (model,), raw in zip(names, column, strict=True):
            if raw is not None:
                counts[model, version, result] = raw
    return MetricSamples(f.SHADOW, list(counts), counted(tuple(counts.values())))


def _models(
    statuses: Mapping[str, ModelStatus], totals: Totals, names: Names
) -> Iterator[MetricSamples]:
    # An unloaded model should have none, so that this is no reason for an alert.
    statuses = {n: status for n, status in statuses.items() if status.state != UNLOADED_STATE}
    labels = [(model,) for model in statuses]
    replicas = [
        sum(served.state.replicas for served in status.workers) for status in statuses.values()
    ]
    yield MetricSamples(f.READY, labels, [status.ready for status in statuses.values()])
    yield MetricSamples(f.REPLICAS, labels, replicas)
    counts = counted(totals.column(worker_report.LOADS))
    seconds = counted(totals.column(worker_report.LOAD_S))
    yield MetricSamples(
        f.LOAD_S, names, list(chain.from_iterable(zip(counts, seconds, strict=True)))
    )


def _generation(
    statuses: Mapping[str, ModelStatus], totals: Totals, names: Names
) -> Iterator[MetricSamples]:
    """Yield the metrics of generators; those of other models only once they have any."""
    states = {
        name: of_workers
        for name, status in statuses.items()
        if (of_workers := [w.state.generation for w in status.workers if w.state.generation])
    }
    for field, family in f.GENERATION.items():
        values = [
            sum(getattr(state, field) for state in of_workers) for of_workers in states.values()
        ]
        yield MetricSamples(family, [(name,) for name in states], values)

    def shown(column: Column) -> list[int]:
        return [n for n, raw in enumerate(column) if raw is not None or names[n][0] in states]

    for name, family in f.GENERATION_COUNTED.items():
        column = totals.column(name)
        models = shown(column)
        values_of = counted([column[n] for n in models])
        yield MetricSamples(family, [names[n] for n in models], values_of)
    for name, family in f.GENERATION_HISTOGRAMS.items():
        models = shown(totals.column(field_of(name)))
        numbers = histogram(totals, name, models)
        yield MetricSamples(family, [names[n] for n in models], numbers, BOUNDS[name])


def _shared(fields: Fields) -> Iterator[MetricSamples]:
    series: list[Labels] = []
    values: list[bytes] = []
    for name, count in read_labelled(fields, REQUESTS).items():
        method, _, rest = name.partition(" ")
        code, _, route = rest.partition(" ")
        series.append((method, route, code))
        values.append(count)
    yield MetricSamples(f.REQUESTS, series, values)
    for name, family, always in (
        (ROUND_TRIPS, f.ROUND_TRIPS, _PARTS),
        (ERRORS, f.ERRORS, _PARTS),
        (WEBHOOKS, f.WEBHOOKS, WEBHOOK_OUTCOMES),
    ):
        counts = {**dict.fromkeys(always, ZERO), **read_labelled(fields, name)}
        yield MetricSamples(family, [(value,) for value in counts], list(counts.values()))


def _measured(workers: Sequence[WorkerReport]) -> Iterator[MetricSamples]:
    named: list[Labels] = list(
        dict.fromkeys((worker.node, ",".join(worker.labels)) for worker in workers if worker.node)
    )
    yield MetricSamples(f.WORKER, named, [1] * len(named))
    memory = {
        (model, worker.node): used_bytes
        for worker in workers
        for model, used_bytes in worker.figures.models.items()
    }
    yield MetricSamples(f.MODEL_MEMORY, list(memory), list(memory.values()))
    # Several workers may measure the same host, and may share a GPU.
    hosts: dict[Labels, HostFigures] = {}
    devices: dict[Labels, DeviceFigures] = {}
    for worker in workers:
        host = worker.figures.host
        if host is not None:
            hosts[(host.name,)] = host
            devices |= {(host.name, device.id): device for device in worker.figures.devices}
    for field, family in f.HOST.items():
        yield MetricSamples(family, list(hosts), [getattr(host, field) for host in hosts.values()])
    named = [(*labels, device.name, device.uuid) for labels, device in devices.items()]
    yield MetricSamples(f.DEVICE, named, [1] * len(named))
    for field, family in f.DEVICES.items():
        measured = {labels: getattr(device, field) for labels, device in devices.items()}
        known = {labels: value for labels, value in measured.items() if value is not None}
        yield MetricSamples(family, list(known), list(known.values()))


def _one(family: Family, value: float, labels: Labels = ()) -> MetricSamples:
    return MetricSamples(family, [labels], [value])
