"""Which metrics are kept: TorchServe's own set, or those of a metrics.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from extensions.torchserve.config.metrics_config import (
    DEFAULT,
    MetricsConfig,
    MetricType,
    metrics_config_of,
    read_metrics_yaml,
)
from extensions.torchserve.config.settings import TorchServeConfig
from headrace.errors import ConfigError

FILE = """
dimensions:
  - &host "Hostname"
ts_metrics:
  counter:
    - {name: Requests2XX, unit: Count, dimensions: [Level, *host]}
model_metrics:
  gauge:
    - {name: HandlerTime, unit: ms, dimensions: [ModelName, Level]}
  histogram:
    - {name: Sizes, unit: Megabytes, dimensions: []}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "metrics.yaml"
    path.write_text(text)
    return path


def test_the_own_set_is_that_of_torchserve() -> None:
    found = {spec.name: spec for spec in DEFAULT}
    assert len(found) == len(DEFAULT) == 21
    assert {spec.name for spec in DEFAULT if spec.type is MetricType.COUNTER} == {
        "Requests2XX", "Requests4XX", "Requests5XX", "ts_inference_requests_total",
        "ts_inference_latency_microseconds", "ts_queue_latency_microseconds",
    }  # fmt: skip
    assert found["ts_queue_latency_microseconds"].host == "hostname"
    assert found["HandlerTime"].unit == "ms"
    assert found["GPUMemoryUsed"].dimensions == ("Level", "DeviceId")


def test_the_users_file_replaces_the_set(tmp_path: Path) -> None:
    config = TorchServeConfig(metrics_config=write(tmp_path, FILE))
    kept = metrics_config_of(config)
    assert list(kept.specs) == ["Requests2XX", "HandlerTime", "Sizes"]
    assert kept.specs["Requests2XX"].dimensions == ("Level",)
    assert kept.specs["Sizes"].type is MetricType.HISTOGRAM


def test_a_metric_that_the_file_does_not_name_is_left_out_unless_it_is_detected() -> None:
    assert MetricsConfig().of_handler("Mine", "counter", "Count", ("Kind",)) is None
    detect = MetricsConfig(auto_detect=True)
    mine = detect.of_handler("Mine", "COUNTER", "Count", ("Kind",))
    assert mine is not None
    assert (mine.type, mine.unit) == (MetricType.COUNTER, "Count")


def test_the_file_decides_the_type_and_the_unit_of_a_metric() -> None:
    found = MetricsConfig().of_handler("HandlerTime", "counter", "Milliseconds", ("ModelName",))
    assert found is not None
    assert (found.type, found.unit) == (MetricType.GAUGE, "ms")


@pytest.mark.parametrize(
    ("name", "kind", "dimension"),
    [("with space", "counter", "Kind"), ("Fine", "counter", "with-dash"), ("Fine", "no", "Kind")],
)
def test_what_prometheus_cannot_show_is_left_out(name: str, kind: str, dimension: str) -> None:
    assert MetricsConfig(auto_detect=True).of_handler(name, kind, "Count", (dimension,)) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "the file must be a mapping"),
        ("ts_metrics: 7", "ts_metrics must be a mapping"),
        ("ts_metrics: {rate: []}", "unknown type 'rate'"),
        ("ts_metrics: {gauge: {}}", "ts_metrics.gauge must be a list"),
        ("model_metrics: {gauge: [x]}", "an entry of model_metrics.gauge must be a mapping"),
        ("model_metrics: {gauge: [{name: A}]}", "a name and a unit"),
        ("model_metrics: {gauge: [{name: A, unit: u, dimensions: x}]}", "a list of names"),
        ("model_metrics: {gauge: [{name: a b, unit: u}]}", "Prometheus accepts no such name"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_metrics_yaml(path)
    assert message in error.value.message
    assert str(path) in error.value.message


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_metrics_yaml(tmp_path / "none.yaml")


def test_an_empty_file_keeps_nothing(tmp_path: Path) -> None:
    assert read_metrics_yaml(write(tmp_path, "")) == ()
