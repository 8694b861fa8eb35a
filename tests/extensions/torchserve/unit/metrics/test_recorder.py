"""TorchServe's metrics of one process: what becomes a line, and what is added in Redis."""

from __future__ import annotations

import logging
import time
from typing import Any, Literal

import pytest

from extensions.torchserve.config.metrics_config import DEFAULT, MetricSpec, MetricType
from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.metrics.recorder import (
    FLUSH_S,
    TorchServeMetrics,
    device_values,
    host_values,
    requests_of,
    version_labels,
    worker_name,
)
from extensions.torchserve.metrics.totals import TorchServeTotals, merged, read_series
from headrace.observability.worker_report import DeviceFigures, Figures, HostFigures

ROW = [
    "HandlerTime",
    "Milliseconds",
    "gauge",
    12.5,
    [["ModelName", "m"], ["Level", "Model"]],
    ["i"],
]
GIB = 1024**3
COUNTER = MetricSpec("Mine", MetricType.COUNTER, "Count", ("Kind",))


class Process:
    """The metrics of one process, and the lines that it has written."""

    def __init__(self, mode: Literal["log", "prometheus", "legacy"], **config: Any) -> None:
        self.written: list[str] = []
        self.metrics = TorchServeMetrics(
            TorchServeConfig(metrics_mode=mode, **config), "api", self.written.append
        )

    def lines(self) -> list[str]:
        self.metrics.flush()
        return "".join(self.written).splitlines()

    def names(self) -> list[str]:
        """The names of the metrics that were written as lines, and of those in Redis."""
        lines = [line.split(" - ")[1].partition(".")[0] for line in self.lines()]
        _, command = self.metrics.totals.take()
        return [*lines, "|", *([] if command is None else map(str, command[6::3]))]


def report_all(process: Process) -> None:
    process.metrics.add("QueueTime", 3.0)
    labels = version_labels("m", "")
    process.metrics.add("ts_inference_requests_total", 1.0, labels, model="m")
    process.metrics.add_of_handler("m", ROW, "W-9000-m_1.0")


def test_the_mode_log_writes_lines_only() -> None:
    process = Process("log")
    report_all(process)
    own, total, handlers = process.lines()
    assert "[INFO ] api TS_METRICS - QueueTime.Milliseconds:3.0|#Level:Host|#hostname:" in own
    assert "_total.Count:1.0|#model_name:m,model_version:default|#hostname:" in total
    assert "] W-9000-m_1.0-stdout MODEL_METRICS - HandlerTime.ms:12.5|#ModelName:m," in handlers
    assert ",requestID:i,timestamp:" in handlers
    assert process.metrics.totals.take()[1] is None
    assert len(process.written) == 1, "all lines are written in one call"


def test_the_mode_prometheus_writes_no_lines() -> None:
    process = Process("prometheus")
    report_all(process)
    before, _, *fields = process.names()
    assert before == "|"
    assert len(fields) == 2, "the first of three follows the arguments of the script"


def test_the_mode_legacy_has_the_three_counters_in_redis() -> None:
    process = Process("legacy")
    report_all(process)
    lines = [line.split(" - ")[1].partition(".")[0] for line in process.lines()]
    assert lines == ["QueueTime", "HandlerTime"]
    command = process.metrics.totals.take()[1]
    assert command is not None
    assert len(command) == 3 + 2 + 3


def test_without_a_log_of_its_format_there_are_no_lines() -> None:
    metrics = TorchServeMetrics(TorchServeConfig(), "api", None)
    metrics.add("QueueTime", 1.0)
    assert not metrics.writes_lines
    metrics.flush()


def test_a_metric_that_the_file_does_not_name_is_left_out() -> None:
    process = Process("log")
    process.metrics.add_of_handler("m", ["Mine", "Count", "counter", 1, [], []], "w")
    process.metrics.add("Unknown", 1.0)
    assert process.lines() == []
    detecting = Process("log", model_metrics_auto_detect=True)
    detecting.metrics.add_of_handler("m", ["Mine", "Count", "counter", 1, [], []], "w")
    assert "Mine.Count:1.0|#|#hostname:" in detecting.lines()[0]


def test_what_is_no_row_is_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    process = Process("log")
    for row in (7, ["HandlerTime"], [*ROW[:3], "fast", [], []]):
        process.metrics.add_of_handler("m", row, "w")
    assert process.lines() == []
    assert [one.levelno for one in caplog.records] == [logging.WARNING]


def test_the_series_of_a_model_have_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    totals = TorchServeTotals("h", series_max=2)
    for kind in ("a", "b", "c", "d", "a"):
        totals.add("m", COUNTER, (("Kind", kind),), 1.0)
    totals.add("other", COUNTER, (("Kind", "a"),), 1.0)
    changes, command = totals.take()
    assert command is not None
    assert list(changes.counters.values()) == [2.0, 1.0, 1.0]
    assert len(caplog.records) == 1


def test_changes_that_could_not_be_written_are_written_later() -> None:
    totals = TorchServeTotals("h")
    gauge = MetricSpec("Level", MetricType.GAUGE, "Count", ())
    sizes = MetricSpec("Sizes", MetricType.HISTOGRAM, "Count", ())

    def report(value: float) -> None:
        for spec in (COUNTER, gauge, sizes):
            totals.add("m", spec, (), value)

    report(1.0)
    lost, _ = totals.take()
    report(30.0)
    totals.give_back(lost)
    changes, _ = totals.take()
    assert list(changes.counters.values()) == [31.0]
    assert list(changes.gauges.values()) == [30.0], "the newer value"
    (counts,) = changes.histograms.values()
    assert (sum(counts[:-1]), counts[-1]) == (2, 31.0)
    assert totals.take()[1] is None


def test_a_counter_cannot_decrease() -> None:
    totals = TorchServeTotals("h")
    totals.add("m", COUNTER, (), -1.0)
    assert totals.take()[1] is None


def test_fields_that_cannot_be_read_are_left_out() -> None:
    fields = {
        b'["A","counter","Count","Hostname",[["Kind","x"]]]': b"3",
        b'["A","counter"]': b"1",
        b'["B","counter","Count","Hostname",[]]': b"many",
        b'["C","rate","Count","Hostname",[]]': b"1",
        b'["D","gauge","Count","Hostname",[]]': b"",
    }
    (found,) = read_series("h m", fields)
    assert (found.labels, found.values) == ((("Kind", "x"), ("Hostname", "h")), (3.0,))


def test_a_name_has_one_type() -> None:
    replies = [
        ("h a", {b'["A","counter","Count","Hostname",[]]': b"3"}),
        ("h b", {b'["A","gauge","Count","Hostname",[]]': b"4"}),
        ("h c", ValueError("of another type")),
    ]
    assert [one.values for one in merged(replies)] == [(3.0,)]


def test_the_names_that_torchserve_has() -> None:
    assert worker_name(0, "m", "1.0") == "W-9000-m_1.0"
    assert [requests_of(status) for status in (200, 404, 500, 301)] == [
        "Requests2XX", "Requests4XX", "Requests5XX", "Requests5XX",
    ]  # fmt: skip
    assert version_labels("m", "2")[1] == ("model_version", "2")


def test_a_host_and_its_gpus_have_the_metrics_of_the_own_set() -> None:
    host = HostFigures(
        "h", cpus=2, cpu_ratio=0.25, memory_bytes=8 * GIB, memory_available_bytes=6 * GIB,
        disk_bytes=110 * GIB, disk_available_bytes=75 * GIB, disk_used_bytes=25 * GIB,
    )  # fmt: skip
    gpu = DeviceFigures("0", busy_ratio=0.5, memory_used_bytes=GIB, memory_bytes=4 * GIB)
    hidden = DeviceFigures("1")
    values = {name: value for name, value, _ in host_values(host)}
    assert values == {
        "CPUUtilization": 25.0, "DiskAvailable": 75.0, "DiskUsage": 25.0, "DiskUtilization": 25.0,
        "MemoryAvailable": 6144.0, "MemoryUsed": 2048.0, "MemoryUtilization": 25.0,
    }  # fmt: skip
    gpus = list(device_values(Figures(host, [gpu, hidden])))
    labels = (("Level", "Host"), ("DeviceId", "0"))
    assert gpus == [
        ("GPUMemoryUtilization", 25.0, labels),
        ("GPUMemoryUsed", 1024.0, labels),
        ("GPUUtilization", 50.0, labels),
    ]
    assert {*values, *(name for name, _, _ in gpus)} <= {spec.name for spec in DEFAULT}
    assert list(host_values(HostFigures("h"))) == [("CPUUtilization", 0.0, labels[:1])]


def test_lines_under_load_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    process, now = Process("log"), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    waits = []
    for _ in range(3):
        process.metrics.add("QueueTime", 1.0)
        waits.append(process.metrics.flush_later())
    assert (waits, len(process.written)) == ([False, True, True], 1)
    now += FLUSH_S
    assert not process.metrics.flush_later()
    assert [text.count("\n") for text in process.written] == [1, 2]
