"""One sample of a deployment: the values of `/metrics` and the states of the models."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headrace.client.errors import decoded
from headrace.client.retries import Session, exchange
from headrace.client.sansio import HttpRequest, Plan
from headrace.errors import UnexpectedAnswer

#: Timeout of a request; a slower server is shown as not answering.
ANSWER_S: Final = 10.0

Labels = tuple[str, ...]

#: The series that are read, with their labels.
SERIES: Final[Mapping[str, Labels]] = {
    "headrace_broker_up": (),
    "headrace_build_info": ("version",),
    "headrace_workers": (),
    "headrace_requests_waiting": (),
    "headrace_queue_depth": ("model", "priority"),
    "headrace_queue_oldest_age_seconds": ("model", "priority"),
    "headrace_queue_paused": ("model",),
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
_NOTHING: Final[dict[Labels, float]] = {}


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample.

    Attributes:
        at_s: the time, by `time.monotonic`.
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
        labels = {k: _ESCAPED.sub(_plain, v) for k, v in _LABEL.findall(matched[2] or "")}
        try:
            found[name][tuple(labels.get(label, "") for label in wanted)] = float(matched[3])
        except ValueError:
            continue
    return dict(found)


def _plain(escaped: re.Match[str]) -> str:
    return "\n" if escaped[1] == "n" else escaped[1]
