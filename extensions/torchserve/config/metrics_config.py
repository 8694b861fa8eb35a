"""Which metrics TorchServe's interfaces show: its own set, or the metrics.yaml of the user.

A metric that metrics.yaml does not name is left out, unless `model_metrics_auto_detect` is on and a
handler has written it. The file decides the type, the unit and the dimensions of a metric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from extensions.torchserve.config.settings import TorchServeConfig
from headrace.errors import ConfigError

#: The buckets of a histogram, without the last one, which is infinite.
BUCKETS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip

REQUESTS: Final = ("Requests2XX", "Requests4XX", "Requests5XX")
INFERENCE_REQUESTS: Final = "ts_inference_requests_total"
INFERENCE_LATENCY: Final = "ts_inference_latency_microseconds"
QUEUE_LATENCY: Final = "ts_queue_latency_microseconds"
#: The only metrics that `/metrics` shows in the mode `legacy`; the log files have the others.
LEGACY: Final = frozenset({INFERENCE_REQUESTS, INFERENCE_LATENCY, QUEUE_LATENCY})
#: The `model_version` of requests that name no version.
NO_VERSION: Final = "default"
QUEUE_TIME: Final = "QueueTime"
WORKER_THREAD_TIME: Final = "WorkerThreadTime"
WORKER_LOAD_TIME: Final = "WorkerLoadTime"
CPU: Final = "CPUUtilization"
MEMORY_USED: Final = "MemoryUsed"
MEMORY_AVAILABLE: Final = "MemoryAvailable"
MEMORY: Final = "MemoryUtilization"
DISK_USED: Final = "DiskUsage"
DISK_AVAILABLE: Final = "DiskAvailable"
DISK: Final = "DiskUtilization"
GPU_MEMORY: Final = "GPUMemoryUtilization"
GPU_MEMORY_USED: Final = "GPUMemoryUsed"
GPU: Final = "GPUUtilization"

#: Names that Prometheus accepts, of metrics and of labels.
_METRIC_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SECTIONS: Final = ("ts_metrics", "model_metrics")
#: The last dimension of the metrics of TorchServe's own, which each process fills in.
_HOSTS: Final = ("Hostname", "hostname")


class MetricType(StrEnum):
    """The type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpec(msgspec.Struct, frozen=True):
    """One metric of metrics.yaml.

    Attributes:
        unit: as the file has it.
        dimensions: without the host.
        host: the name of the dimension with the host.
    """

    name: str
    type: MetricType
    unit: str
    dimensions: tuple[str, ...]
    host: str = "Hostname"


def _specs(
    kind: MetricType, unit: str, dimensions: tuple[str, ...], *names: str, host: str = "Hostname"
) -> tuple[MetricSpec, ...]:
    return tuple(MetricSpec(name, kind, unit, dimensions, host) for name in names)


_HOST: Final = ("Level",)
_DEVICE: Final = ("Level", "DeviceId")
_VERSION: Final = ("model_name", "model_version")
#: What TorchServe has without a metrics.yaml of the user.
DEFAULT: Final = (
    *_specs(MetricType.COUNTER, "Count", _HOST, *REQUESTS),
    *_specs(MetricType.COUNTER, "Count", _VERSION, INFERENCE_REQUESTS, host="hostname"),
    *_specs(
        MetricType.COUNTER, "Microseconds", _VERSION, INFERENCE_LATENCY, QUEUE_LATENCY,
        host="hostname",
    ),
    *_specs(MetricType.GAUGE, "Milliseconds", _HOST, QUEUE_TIME, WORKER_THREAD_TIME),
    *_specs(MetricType.GAUGE, "Milliseconds", ("WorkerName", "Level"), WORKER_LOAD_TIME),
    *_specs(MetricType.GAUGE, "Percent", _HOST, CPU),
    *_specs(MetricType.GAUGE, "Megabytes", _HOST, MEMORY_USED, MEMORY_AVAILABLE),
    *_specs(MetricType.GAUGE, "Percent", _HOST, MEMORY),
    *_specs(MetricType.GAUGE, "Gigabytes", _HOST, DISK_USED),
    *_specs(MetricType.GAUGE, "Percent", _HOST, DISK),
    *_specs(MetricType.GAUGE, "Gigabytes", _HOST, DISK_AVAILABLE),
    *_specs(MetricType.GAUGE, "Percent", _DEVICE, GPU_MEMORY),
    *_specs(MetricType.GAUGE, "Megabytes", _DEVICE, GPU_MEMORY_USED),
    *_specs(MetricType.GAUGE, "Percent", _DEVICE, GPU),
    *_specs(MetricType.GAUGE, "ms", ("ModelName", "Level"), "HandlerTime", "PredictionTime"),
)  # fmt: skip


class MetricsConfig:
    """The metrics that are kept.

    Args:
        auto_detect: keep metrics of handlers that it does not name too.

    Attributes:
        specs: by name, in the order of the file.
    """

    def __init__(self, specs: Iterable[MetricSpec] = DEFAULT, *, auto_detect: bool = False) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self._auto_detect = auto_detect

    def of_handler(
        self, name: str, kind: str, unit: str, dimensions: tuple[str, ...]
    ) -> MetricSpec | None:
        """Return the metric that a handler has written; None if it is left out."""
        spec = self.specs.get(name)
        if spec is not None:
            return spec
        if not self._auto_detect or not _fits(name, dimensions):
            return None
        try:
            return MetricSpec(name, MetricType(kind.lower()), unit, dimensions)
        except ValueError:
            return None


def metrics_config_of(config: TorchServeConfig) -> MetricsConfig:
    """Return the metrics that a configuration keeps.

    Raises:
        ConfigError: its metrics.yaml cannot be read.
    """
    file = config.metrics_config
    specs = DEFAULT if file is None else read_metrics_yaml(file)
    return MetricsConfig(specs, auto_detect=config.model_metrics_auto_detect)


def read_metrics_yaml(path: Path) -> tuple[MetricSpec, ...]:
    """Return the metrics of a metrics.yaml.

    Raises:
        ConfigError: it cannot be read, or it is not a metrics.yaml.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"metrics_config: {path} cannot be read: {error}",
            hint="correct the file, or remove metrics_config from config.properties",
        ) from None
    try:
        return tuple(_read(found))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"metrics_config: {path}: {error}",
            hint="the file has the sections ts_metrics and model_metrics; each has the lists "
            "counter, gauge and histogram; an entry has name, unit and dimensions",
        ) from None


def _read(found: Any) -> Iterable[MetricSpec]:
    for section in _SECTIONS:
        for kind, entries in _mapping(_mapping(found, "the file").get(section), section).items():
            try:
                type_ = MetricType(kind)
            except ValueError:
                raise ValueError(
                    f"{section}: unknown type {kind!r}; it must be counter, gauge or histogram"
                ) from None
            if not isinstance(entries, (list, type(None))):
                raise TypeError(f"{section}.{kind} must be a list")
            for entry in entries or ():
                yield _entry(_mapping(entry, f"an entry of {section}.{kind}"), type_, section)


def _entry(entry: Mapping[str, Any], kind: MetricType, section: str) -> MetricSpec:
    name, unit = entry.get("name"), entry.get("unit")
    dimensions = entry.get("dimensions") or []
    if not isinstance(name, str) or not isinstance(unit, str):
        raise TypeError(f"{section}: each entry needs a name and a unit")
    if not isinstance(dimensions, list) or not all(isinstance(one, str) for one in dimensions):
        raise TypeError(f"{section}: the dimensions of {name} must be a list of names")
    if not _fits(name, dimensions):
        raise ValueError(
            f"{section}: Prometheus accepts no such name: {name} with {', '.join(dimensions)}"
        )
    hosts = [one for one in dimensions if one in _HOSTS]
    own = tuple(one for one in dimensions if one not in _HOSTS)
    return MetricSpec(name, kind, unit, own, hosts[0] if hosts else _HOSTS[0])


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"{what} must be a mapping")
    return value


def _fits(name: str, dimensions: Iterable[str]) -> bool:
    return bool(_METRIC_NAME.fullmatch(name)) and all(map(_LABEL_NAME.fullmatch, dimensions))
