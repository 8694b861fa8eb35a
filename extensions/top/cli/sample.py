"""A sample of a deployment (`/metrics` and the states of the models), and rates between two."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headrace.client.http.retries import Session, decoded, exchange
from headrace.client.sansio import HttpRequest, Plan
from headrace.errors import UnexpectedAnswer

#: Timeout of a request; a slower server is shown as not answering.
ANSWER_S: Final = 10.0

Labels = tuple[str, ...]
#: Selects the counters that count, by their labels.
Only = Callable[[Labels], bool]

#: The series that are read, with their labels.
SERIES: Final[Mapping[str, Labels]] = {
    "headrace_broker_up": (),
    "headrace_build_info": ("version",),
    "headrace_workers": (),
    "headrace_worker_info": ("worker", "labels"),
    "headrace_requests_waiting": (),
    "headrace_queue_depth": ("model", "priority"),
    "headrace_queue_oldest_age_seconds": ("model", "priority"),
    "headrace_queue_paused": ("model",),
    "headrace_queue_tokens": ("model",),
    "headrace_prompt_tokens_total": ("model",),
    "headrace_generation_tokens_total": ("model",),
    "headrace_jobs_in_flight": ("model",),
    "headrace_jobs_scheduled": ("model",),
    "headrace_jobs_ended_total": ("model", "status"),
    "headrace_jobs_retried_total": ("model",),
    "headrace_jobs_rejected_total": ("model", "reason"),
    "headrace_dead_letters": ("model",),
    "headrace_job_seconds_bucket": ("model", "le"),
    "headrace_batch_size_sum": ("model",),
    "headrace_batch_size_count": ("model",),
    "headrace_model_ready_replicas": ("model",),
    "headrace_model_replicas": ("model",),
    "headrace_model_restarts_total": ("model", "reason"),
    "headrace_model_memory_bytes": ("model", "worker"),
    "headrace_api_requests_total": ("method", "route", "code"),
    "headrace_redis_round_trips_total": ("part",),
    "headrace_redis_errors_total": ("part",),
    "headrace_redis_memory_used_bytes": (),
    "headrace_redis_memory_max_bytes": (),
    "headrace_device_info": ("host", "device", "name"),
    "headrace_device_utilization_ratio": ("host", "device"),
    "headrace_device_memory_bytes": ("host", "device"),
    "headrace_device_memory_used_bytes": ("host", "device"),
    "headrace_device_temperature_celsius": ("host", "device"),
    "headrace_device_power_watts": ("host", "device"),
    "headrace_host_cpus": ("host",),
    "headrace_host_cpu_ratio": ("host",),
    "headrace_host_memory_bytes": ("host",),
    "headrace_host_memory_available_bytes": ("host",),
    "headrace_host_disk_bytes": ("host",),
    "headrace_host_disk_available_bytes": ("host",),
}
_LINE: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_PLAIN: Final = {"n": "\n"}
_NOTHING: Final[dict[Labels, float]] = {}


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample.

    Attributes:
        series: the values of each of `SERIES`, by the values of its labels.
        states: the state of each model, in the order of the models file.
    """

    at_s: float
    series: Mapping[str, Mapping[Labels, float]]
    states: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> Mapping[Labels, float]:
        """Return the values of one series; none if the server does not have it."""
        return self.series.get(f"headrace_{name}", _NOTHING)

    def one(self, name: str, *labels: str) -> float:
        """Return one value; 0 if it is missing."""
        return self.of(name).get(labels, 0.0)

    def total(self, name: str, *labels: str) -> float:
        """Return the sum of the values with these first labels."""
        return sum(v for k, v in self.of(name).items() if k[: len(labels)] == labels)


class _Model(msgspec.Struct):
    name: str
    state: str = ""


class _Models(msgspec.Struct):
    models: list[_Model]


def read(session: Session) -> Plan[Sample]:
    """Read a sample from a server.

    Raises:
        HeadraceError: the server does not answer, refuses, or is not Headrace.
    """
    metrics = yield from exchange(session, HttpRequest("GET", "/metrics", within_s=ANSWER_S))
    at_s = time.monotonic()
    series = parse(metrics.body.decode("utf-8", "replace"))
    if "headrace_build_info" not in series:
        raise UnexpectedAnswer(
            f"{session.url}/metrics is not from Headrace",
            hint="Use the address of Headrace's API, with its path if it has one.",
        )
    if not series.get("headrace_broker_up", _NOTHING).get((), 0.0):
        return Sample(at_s, series)  # without Redis the server cannot list the models
    listed = yield from exchange(session, HttpRequest("GET", "/api/v1/models", within_s=ANSWER_S))
    return Sample(at_s, series, {m.name: m.state for m in decoded(listed, _Models).models})


def parse(text: str) -> dict[str, dict[Labels, float]]:
    """Parse the series of `SERIES` in Prometheus' text format; skip invalid lines."""
    found: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        wanted = SERIES.get(name)
        matched = _LINE.match(line) if wanted is not None else None
        if wanted is None or matched is None:
            continue
        escaped = _LABEL.findall(matched[2] or "")
        labels = {k: _ESCAPED.sub(lambda m: _PLAIN.get(m[1], m[1]), v) for k, v in escaped}
        try:
            found[name][tuple(labels.get(label, "") for label in wanted)] = float(matched[3])
        except ValueError:
            continue
    return dict(found)


@dataclass(frozen=True, slots=True)
class Span:
    """The time between two samples; without the earlier one nothing has grown."""

    now: Sample
    before: Sample | None

    @property
    def seconds(self) -> float:
        """Return its length; 0 without an earlier sample."""
        return 0.0 if self.before is None else self.now.at_s - self.before.at_s

    def rate(self, name: str, *labels: str, only: Only = lambda _: True) -> float | None:
        """Return the growth per second of the counters with these first labels, or None."""
        if self.before is None or self.seconds <= 0:
            return None
        return self.grown(name, *labels, only=only) / self.seconds

    def grown(self, name: str, *labels: str, only: Only = lambda _: True) -> float:
        """Return the growth of the counters; a counter that decreased was reset to 0."""
        if self.before is None:
            return 0.0
        old, total = self.before.of(name), 0.0
        for place, value in self.now.of(name).items():
            if place[: len(labels)] == labels and only(place):
                was = old.get(place, 0.0)
                total += value - was if value >= was else value
        return total

    def quantile(self, name: str, model: str, share: float) -> float | None:
        """Return a percentile of a histogram's growth, like Prometheus' histogram_quantile."""
        if self.before is None:
            return None
        buckets = [
            (math.inf if le == "+Inf" else float(le), self.grown(name, model, le))
            for at, le in self.now.of(name)
            if at == model
        ]
        return quantile(sorted(buckets), share)


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return a percentile from cumulative buckets, interpolated within a bucket.

    Args:
        buckets: upper bounds, the last one infinite, and the number of values up to each bound.
        share: 0.5 for the median.

    Returns:
        The value; at most the last finite bound. None without values.
    """
    if not buckets or buckets[-1][1] <= 0:
        return None
    wanted = share * buckets[-1][1]
    low = below = 0.0
    for bound, count in buckets:
        if count >= wanted and count > below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low
