"""Takes the metrics of one process for TorchServe's interfaces, as `metrics_mode` has it.

In the mode `log` each value is a line of the log, in `prometheus` it is added to the totals in
Redis. In `legacy` the three counters whose names begin with `ts_` are in Redis, and all others are
lines.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from extensions.torchserve.config import metrics_config as m
from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.logs.lines import (
    ACCESS,
    LOG_FORMAT,
    MODEL_METRICS,
    TS_METRICS,
    Labels,
    console_line,
    metric_text,
)
from extensions.torchserve.metrics.totals import NO_MODEL, TorchServeTotals
from headrace.observability import logs
from headrace.observability.worker_report import Figures, HostFigures

logger = logging.getLogger(__name__)

#: The dimensions of metrics of the host.
HOST: Final[Labels] = (("Level", "Host"),)
MEGABYTE: Final = 1024**2
GIGABYTE: Final = 1024**3
#: The least time between two writes of lines while requests are served, in seconds.
FLUSH_S: Final = 0.1
#: The port of TorchServe's first worker. A model process is named by such a number.
FIRST_WORKER: Final = 9000


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One value that a handler has reported.

    Attributes:
        type: `counter`, `gauge` or `histogram`.
        request_ids: the requests that it is about; empty for none.
    """

    name: str
    unit: str
    type: str
    value: float
    dimensions: tuple[tuple[str, str], ...] = ()
    request_ids: tuple[str, ...] = ()


def metrics_output(log_format: str) -> Callable[[str], None] | None:
    """Return what writes lines to the log of this process; None if it has another format."""
    return logs.standard_error().write if log_format == LOG_FORMAT else None


class TorchServeMetrics:
    """The metrics of one process. Used by one thread.

    Args:
        thread: the name of this process, as the thread of its lines.
        write: writes lines to the log of this process; None for no lines.

    Attributes:
        totals: what Redis gets with the next write.

    Raises:
        ConfigError: the user's metrics.yaml cannot be read.
    """

    def __init__(
        self, config: TorchServeConfig, thread: str, write: Callable[[str], object] | None
    ) -> None:
        self._host = socket.gethostname()
        self.totals = TorchServeTotals(self._host)
        self._kept = m.metrics_config_of(config)
        self._mode = config.metrics_mode
        self._thread = thread
        self._write = write
        self._lines: list[str] = []
        self._flushed_at = 0.0
        self._warned = False

    @property
    def specs(self) -> Mapping[str, m.MetricSpec]:
        """The metrics of metrics.yaml, by name."""
        return self._kept.specs

    @property
    def writes_lines(self) -> bool:
        """Whether there is a log for lines."""
        return self._write is not None

    def add(
        self,
        name: str,
        value: float,
        labels: Labels = HOST,
        *,
        model: str = NO_MODEL,
        thread: str = "",
    ) -> None:
        """Take a value of one of the server's own metrics.

        Args:
            value: what a counter grows by, or the value of a gauge.
            labels: without the host.
            thread: the model process that it is about.
        """
        if spec := self._kept.specs.get(name):
            self._take(model, spec, labels, value, TS_METRICS, thread)

    def add_each(self, name: str, values: Sequence[float]) -> None:
        """Take several values of a gauge of the host; Redis gets the last one."""
        for value in values[-1:] if self._counts(name) else values:
            self.add(name, value)

    def add_of_handler(self, model: str, row: Any, thread: str) -> None:
        """Take a value that a handler has reported, as it came from its process."""
        try:
            one = msgspec.convert(row, Row)
        except msgspec.ValidationError as error:
            if not self._warned:
                self._warned = True
                logger.warning("a metric cannot be read: %s", error, extra={"model": model})
            return
        dimensions = tuple(name for name, _ in one.dimensions)
        spec = self._kept.of_handler(one.name, one.type, one.unit, dimensions)
        if spec is not None:
            self._take(
                model, spec, one.dimensions, one.value, MODEL_METRICS, f"{thread}-stdout",
                ",".join(one.request_ids) or None,
            )  # fmt: skip

    def _take(
        self, model: str, spec: m.MetricSpec, labels: Labels, value: float, logger_name: str,
        thread: str, request_ids: str | None = "",
    ) -> None:  # fmt: skip
        if self._counts(spec.name):
            self.totals.add(model, spec, labels, value)
        elif self._write is not None:
            now = time.time()
            text = metric_text(spec.name, spec.unit, value, labels, self._host, now, request_ids)
            self._line(now, logger_name, text, thread)

    def access(self, text: str) -> None:
        """Take a line of the access log."""
        self._line(time.time(), ACCESS, text, "")

    def flush(self) -> None:
        """Write the lines, in one call."""
        if self._lines and self._write is not None:
            lines, self._lines = self._lines, []
            self._flushed_at = time.monotonic()
            self._write("".join(lines))

    def flush_later(self) -> bool:
        """Write the lines unless some were just written; return whether some still wait.

        Under load one write then has the lines of many requests.
        """
        if self._lines and time.monotonic() >= self._flushed_at + FLUSH_S:
            self.flush()
        return bool(self._lines)

    def _counts(self, name: str) -> bool:
        return self._mode == "prometheus" or (self._mode == "legacy" and name in m.LEGACY)

    def _line(self, now: float, logger_name: str, text: str, thread: str) -> None:
        self._lines.append(console_line(now, "INFO", thread or self._thread, logger_name, text))


def worker_name(number: int, model: str, version: str) -> str:
    """Return the name of a model process, as TorchServe names its workers."""
    return f"W-{FIRST_WORKER + number}-{model}_{version or '1.0'}"


def requests_of(status: int) -> str:
    """Return the counter of responses with a status."""
    two, four, five = m.REQUESTS
    return {2: two, 4: four}.get(status // 100, five)


def version_labels(model: str, version: str) -> Labels:
    """Return the dimensions of a metric of one version; "" if the request names none."""
    return (("model_name", model), ("model_version", version or m.NO_VERSION))


def host_values(host: HostFigures) -> Iterator[tuple[str, float, Labels]]:
    """Yield the metrics of a host, with their dimensions."""
    used = host.memory_bytes - host.memory_available_bytes
    yield m.CPU, round(host.cpu_ratio * 100, 1), HOST
    disk = host.disk_used_bytes
    if shared := disk + host.disk_available_bytes:
        yield m.DISK_AVAILABLE, host.disk_available_bytes / GIGABYTE, HOST
        yield m.DISK_USED, disk / GIGABYTE, HOST
        yield m.DISK, round(disk / shared * 100, 1), HOST
    if host.memory_bytes:
        yield m.MEMORY_AVAILABLE, host.memory_available_bytes / MEGABYTE, HOST
        yield m.MEMORY_USED, used / MEGABYTE, HOST
        yield m.MEMORY, round(used / host.memory_bytes * 100, 1), HOST


def device_values(figures: Figures) -> Iterator[tuple[str, float, Labels]]:
    """Yield the metrics of a worker's GPUs, with their dimensions."""
    for device in figures.devices:
        labels = (*HOST, ("DeviceId", device.id))
        if device.memory_used_bytes is not None and device.memory_bytes:
            share = device.memory_used_bytes / device.memory_bytes
            yield m.GPU_MEMORY, round(share * 100, 1), labels
            yield m.GPU_MEMORY_USED, device.memory_used_bytes / MEGABYTE, labels
        if device.busy_ratio is not None:
            yield m.GPU, round(device.busy_ratio * 100, 1), labels
