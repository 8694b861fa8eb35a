"""What Redis knows of queues, models, workers and hosts, as the metrics of one scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, TypeVar

from api import families as f
from api.counters import REQUESTS
from api.exposition import Found, Labels
from api.families import Family
from api.fleet import ModelStatus
from api.services import Services
from headrace import __version__, telemetry
from headrace.depth import Depth
from headrace.errors import BrokerError, QueueFull
from headrace.figures import DeviceFigures, HostFigures
from headrace.scrape import Scraped
from headrace.telemetry import WorkerReport
from headrace.totals import (
    BOUNDS,
    ZERO,
    Fields,
    counted,
    histogram,
    labelled,
    numbers,
    read_labelled,
)
from headrace.traffic import ERRORS, ROUND_TRIPS
from headrace.webhooks.records import COUNTER as WEBHOOKS
from headrace.webhooks.records import OUTCOMES as WEBHOOK_OUTCOMES

T = TypeVar("T")

#: Shown from the first scrape on, so that a rate has a zero to begin from.
_STATUSES: Final = ("succeeded", "failed", "expired", "cancelled")
_REASONS: Final = ("full", "cost", "deadline", "idle", "alone", "drain")
_RESTARTED: Final = ("lost", "recycled")
_PARTS: Final = ("api", "worker")

_COUNTED: Final = {
    telemetry.ADMITTED: f.ADMITTED,
    telemetry.DEAD: f.DEAD,
    telemetry.PADDING: f.PADDING,
    telemetry.STARVED: f.STARVED,
    telemetry.LOAD_FAILURES: f.LOAD_FAILURES,
    telemetry.RENEWED: f.RENEWED,
    telemetry.LEASES_LOST: f.LEASES_LOST,
    telemetry.UNTOLD: f.UNTOLD,
}
_LABELLED: Final = {
    telemetry.REJECTED: (f.REJECTED, (QueueFull.code,)),
    telemetry.ENDED: (f.ENDED, _STATUSES),
    telemetry.LEFT: (f.BATCHES, _REASONS),
    telemetry.RESTARTS: (f.RESTARTS, _RESTARTED),
}
#: Stands among the ends, and is shown on its own.
_RETRIED: Final = f"{telemetry.ENDED}:{telemetry.RETRIED}"
_HOST: Final[tuple[tuple[Family, Callable[[HostFigures], float]], ...]] = (
    (f.HOST_CPUS, lambda host: host.cpus),
    (f.HOST_CPU, lambda host: host.cpu_ratio),
    (f.HOST_MEMORY, lambda host: host.memory_bytes),
    (f.HOST_MEMORY_FREE, lambda host: host.memory_available_bytes),
    (f.HOST_DISK, lambda host: host.disk_bytes),
    (f.HOST_DISK_FREE, lambda host: host.disk_available_bytes),
)
_DEVICE: Final[tuple[tuple[Family, Callable[[DeviceFigures], float | None]], ...]] = (
    (f.DEVICE_BUSY, lambda device: device.busy_ratio),
    (f.DEVICE_MEMORY, lambda device: device.memory_bytes),
    (f.DEVICE_MEMORY_USED, lambda device: device.memory_used_bytes),
    (f.DEVICE_TEMPERATURE, lambda device: device.temperature_celsius),
    (f.DEVICE_POWER, lambda device: device.power_watts),
)


async def metrics_of(services: Services) -> Iterable[Found]:
    """Ask Redis; a scrape must not fail with it, or the outage itself could not be seen."""
    try:
        scraped = await services.scraper.read()
    except BrokerError:
        return [_one(f.BROKER_UP, 0), _one(f.BUILD, 1, (__version__,))]
    statuses = services.fleet.learn(scraped.workers)
    versions = {model.name: model.version for model in services.catalog.served}
    waiting = services.tally.waiting(scraped.waiting)
    return _all(scraped, statuses, versions, waiting)


def _all(
    scraped: Scraped,
    statuses: Mapping[str, ModelStatus],
    versions: Mapping[str, str],
    waiting: int,
) -> Iterator[Found]:
    yield _one(f.BROKER_UP, 1)
    yield _one(f.BUILD, 1, (__version__,))
    yield _one(f.WORKERS, len(scraped.workers))
    yield _one(f.WAITING, waiting)
    yield _one(f.ERRANDS, scraped.errands)
    yield _one(f.WEBHOOKS_PENDING, scraped.webhooks)
    if scraped.memory is not None:
        used, most = scraped.memory
        yield _one(f.REDIS_MEMORY, used)
        yield _one(f.REDIS_LIMIT, most)
    yield from _queues(scraped.depths, scraped.paused, versions)
    yield from _counted(scraped.counted)
    yield from _models(statuses, scraped.counted)
    yield from _shared(scraped.shared)
    yield from _measured(list(scraped.workers.values()))


def _queues(
    depths: Mapping[str, Depth], paused: frozenset[str], versions: Mapping[str, str]
) -> Iterator[Found]:
    places = [
        (model, versions[model], str(step))
        for model, depth in depths.items()
        for step in depth.waiting
    ]
    yield Found(f.DEPTH, places, [n for depth in depths.values() for n in depth.waiting.values()])
    ages = [depth.oldest_ages_s.get(step, 0) for depth in depths.values() for step in depth.waiting]
    yield Found(f.OLDEST, places, ages)
    yield _by_model(f.PAUSED, depths, lambda depth: int(depth.queue in paused))
    yield _by_model(f.IN_FLIGHT, depths, lambda depth: depth.in_flight)
    yield _by_model(f.SCHEDULED, depths, lambda depth: depth.scheduled)
    yield _by_model(f.LETTERS, depths, lambda depth: depth.dead)


def _counted(models: Mapping[str, Fields]) -> Iterator[Found]:
    names, all_fields = [(model,) for model in models], models.values()
    for name, family in _COUNTED.items():
        yield Found(family, names, counted(all_fields, name))
    yield Found(f.RETRIED, names, counted(all_fields, _RETRIED))
    forms = [_forms(model, tuple(fields)) for model, fields in models.items()]
    for name, (family, _) in _LABELLED.items():
        series: list[Labels] = []
        values: list[bytes] = []
        for (labels, raws), fields in zip((of[name] for of in forms), all_fields, strict=True):
            series += labels
            values += [fields.get(raw, b"0") for raw in raws]
        yield Found(family, series, numbers(values))
    for name, family in f.HISTOGRAMS.items():
        yield Found(family, names, histogram(all_fields, name), BOUNDS[name])


# A model has the same fields from scrape to scrape.
@lru_cache(maxsize=1024)
def _forms(model: str, fields: tuple[bytes, ...]) -> dict[str, tuple[list[Labels], list[bytes]]]:
    """The series of a model's `_LABELLED`, by name: their labels, and the field of each."""
    found: dict[str, tuple[list[Labels], list[bytes]]] = {}
    for name, (_, always) in _LABELLED.items():
        forms = {which: f"{name}:{which}".encode() for which in always} | labelled(fields, name)
        if name == telemetry.ENDED:
            forms.pop(telemetry.RETRIED, None)
        found[name] = ([(model, which) for which in forms], list(forms.values()))
    return found


def _models(statuses: Mapping[str, ModelStatus], models: Mapping[str, Fields]) -> Iterator[Found]:
    yield _by_model(f.READY, statuses, lambda status: status.ready)
    yield _by_model(
        f.REPLICAS, statuses, lambda status: sum(one.state.replicas for one in status.workers)
    )
    counts, seconds = (
        counted(models.values(), name) for name in (telemetry.LOADS, telemetry.LOAD_S)
    )
    loads = list(chain.from_iterable(zip(counts, seconds, strict=True)))
    yield Found(f.LOAD_S, [(model,) for model in models], loads)


def _shared(fields: Fields) -> Iterator[Found]:
    series: list[Labels] = []
    values: list[bytes] = []
    for name, count in read_labelled(fields, REQUESTS).items():
        method, _, rest = name.partition(" ")
        code, _, route = rest.partition(" ")
        series.append((method, route, code))
        values.append(count)
    yield Found(f.REQUESTS, series, values)
    for name, family, always in (
        (ROUND_TRIPS, f.ROUND_TRIPS, _PARTS),
        (ERRORS, f.ERRORS, _PARTS),
        (WEBHOOKS, f.WEBHOOKS, WEBHOOK_OUTCOMES),
    ):
        counts = {**dict.fromkeys(always, ZERO), **read_labelled(fields, name)}
        yield Found(family, [(which,) for which in counts], list(counts.values()))


def _measured(workers: Sequence[WorkerReport]) -> Iterator[Found]:
    memory = {
        (model, worker.node): taken
        for worker in workers
        for model, taken in worker.figures.models.items()
    }
    yield Found(f.MODEL_MEMORY, list(memory), list(memory.values()))
    # Several workers measure one host, and may share a GPU.
    hosts: dict[Labels, HostFigures] = {}
    devices: dict[Labels, DeviceFigures] = {}
    for worker in workers:
        host = worker.figures.host
        if host is not None:
            hosts[(host.name,)] = host
            devices |= {(host.name, device.id): device for device in worker.figures.devices}
    for family, of_host in _HOST:
        yield Found(family, list(hosts), [of_host(host) for host in hosts.values()])
    told = [(*place, device.name, device.uuid) for place, device in devices.items()]
    yield Found(f.DEVICE, told, [1] * len(told))
    for family, of_device in _DEVICE:
        known = {place: of_device(device) for place, device in devices.items()}
        shown = {place: value for place, value in known.items() if value is not None}
        yield Found(family, list(shown), list(shown.values()))


def _one(family: Family, value: float, labels: Labels = ()) -> Found:
    return Found(family, [labels], [value])


def _by_model(family: Family, found: Mapping[str, T], value: Callable[[T], float]) -> Found:
    return Found(family, [(model,) for model in found], [value(one) for one in found.values()])
