"""`context.metrics`: each value becomes a row."""

from __future__ import annotations

import io
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from ts.metrics.caching_metric import CachingMetric
from ts.metrics.dimension import Dimension
from ts.metrics.emission import MetricRow
from ts.metrics.metric import Metric
from ts.metrics.metric_cache_errors import (
    MetricsCacheIOError,
    MetricsCacheKeyError,
    MetricsCachePyYamlError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from ts.metrics.metric_cache_yaml_impl import DEFAULT, MetricsCacheYamlImpl
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_store import MetricsStore
from ts.metrics.process_memory_metric import check_process_mem_usage, get_cpu_usage
from ts.metrics.unit import Units
from ts.service import emit_metrics

OWN = [["ModelName", "m"], ["Level", "Model"]]


@pytest.fixture
def metrics() -> MetricsCacheYamlImpl:
    found = MetricsCacheYamlImpl(DEFAULT)
    found.initialize_cache()
    found.model_name = "m"
    found.set_request_ids({0: "a", 1: "b"})
    return found


def test_each_method_has_its_unit_and_type(
    metrics: MetricsCacheYamlImpl, rows: list[MetricRow]
) -> None:
    metrics.add_counter("c", 2)
    metrics.add_time("t", 1.5, 0)
    metrics.add_time("s", 1, 0, "s", None, MetricTypes.HISTOGRAM)
    metrics.add_size("z", 3, 1)
    metrics.add_size("k", 3, 1, "kB")
    metrics.add_percent("p", 50)
    metrics.add_metric("own", 1, "furlongs", metric_type=MetricTypes.GAUGE)
    assert [row[:4] for row in rows] == [
        ("c", "Count", "counter", 2.0),
        ("t", "Milliseconds", "gauge", 1.5),
        ("s", "Seconds", "histogram", 1.0),
        ("z", "Megabytes", "gauge", 3.0),
        ("k", "Kilobytes", "gauge", 3.0),
        ("p", "Percent", "gauge", 50.0),
        ("own", "furlongs", "gauge", 1.0),
    ]
    assert [row.request_ids for row in rows[:4]] == [["a", "b"], ["a"], ["a"], ["b"]]
    assert all(row.dimensions == OWN for row in rows)


def test_dimensions_come_before_the_default_ones_and_are_not_repeated(
    metrics: MetricsCacheYamlImpl, rows: list[MetricRow]
) -> None:
    metrics.add_counter("c", 1, None, [Dimension("Kind", 7)])
    metrics.add_counter("c", 1, None, [Dimension("Level", "Host")])
    assert rows[0].dimensions == [["Kind", "7"], *OWN]
    assert rows[1].dimensions == [["Level", "Host"], ["ModelName", "m"]]


def test_a_value_about_no_request_has_the_level_error(
    metrics: MetricsCacheYamlImpl, rows: list[MetricRow]
) -> None:
    metrics.add_error("e", 1, [Dimension("Kind", "x")])
    metrics.set_request_ids(None)
    metrics.add_counter("c", 1)
    assert rows[0] == MetricRow(
        "e", "unit", "counter", 1.0, [["Kind", "x"], ["Level", "Error"]], []
    )
    assert rows[1].dimensions == [["Level", "Error"]]


def test_a_metric_of_the_handlers_own(metrics: MetricsCacheYamlImpl, rows: list[MetricRow]) -> None:
    own = metrics.add_metric_to_cache("n", "count", ["a", "b"], MetricTypes.HISTOGRAM)
    own.add_or_update(1.5, ["x", 2], "id-1,id-2")
    assert rows == [
        MetricRow("n", "Count", "histogram", 1.5, [["a", "x"], ["b", "2"]], ["id-1", "id-2"])
    ]
    assert metrics.get_metric("n", MetricTypes.HISTOGRAM) is own
    assert metrics.cache[MetricTypes.HISTOGRAM]["n"] is own
    assert own in metrics.store


@pytest.mark.parametrize(
    ("value", "dimensions"), [(-1, ["x"]), (1, []), ("none", ["x"]), (float("nan"), ["x"])]
)
def test_a_wrong_value_is_logged_and_never_raises(
    value: Any, dimensions: list[str], rows: list[MetricRow], caplog: pytest.LogCaptureFixture
) -> None:
    CachingMetric("n", "count", ["a"]).add_or_update(value, dimensions)
    assert rows == []
    assert [one.levelno for one in caplog.records] == [logging.ERROR]


def test_wrong_arguments_raise_torchserves_errors(metrics: MetricsCacheYamlImpl) -> None:
    with pytest.raises(MetricsCacheValueError):
        metrics.add_time("t", 1, unit="h")
    with pytest.raises(MetricsCacheValueError):
        metrics.add_size("t", 1, unit="ms")
    with pytest.raises(MetricsCacheKeyError):
        metrics.get_metric("unknown")
    with pytest.raises(AttributeError):
        metrics.add_metric("n", 1, "ms", dimensions=["x"])  # type: ignore[list-item]
    wrong: tuple[tuple[Any, ...], ...] = (
        ("n", "ms", [], "gauge"),
        ("n", None),
        (1, "ms"),
        ("n", "ms", "dimensions"),
    )
    for arguments in wrong:
        with pytest.raises(TypeError):
            metrics.add_metric_to_cache(*arguments)
    for name, kind in ((1, MetricTypes.GAUGE), ("n", "gauge")):
        with pytest.raises(MetricsCacheTypeError):
            metrics.get_metric(name, kind)  # type: ignore[arg-type]
    # Handlers catch the errors of Python.
    for own, theirs in (
        (MetricsCacheIOError, OSError),
        (MetricsCacheKeyError, KeyError),
        (MetricsCachePyYamlError, yaml.YAMLError),
        (MetricsCacheTypeError, TypeError),
        (MetricsCacheValueError, ValueError),
    ):
        assert issubclass(own, theirs)
    with pytest.raises(MetricsCacheTypeError):
        MetricsCacheYamlImpl(None)  # type: ignore[arg-type]
    assert Units().units["GB"] == "Gigabytes"


def test_the_metrics_of_every_model_are_known(metrics: MetricsCacheYamlImpl) -> None:
    for name in ("HandlerTime", "PredictionTime"):
        assert metrics.get_metric(name, MetricTypes.GAUGE).dimension_names == ["ModelName", "Level"]


def test_a_file_of_metrics_is_read(tmp_path: Path) -> None:
    file = tmp_path / "metrics.yaml"
    file.write_text("""
dimensions:
  - &model ModelName
ts_metrics: {counter: []}
model_metrics:
  counter:
    - {name: c, unit: Count, dimensions: [*model]}
  gauge:
  histogram:
    - {name: h, unit: ms, dimensions: []}
""")
    metrics = MetricsCacheYamlImpl(str(file))
    metrics.initialize_cache()
    assert metrics.get_metric("c").dimension_names == ["ModelName"]
    assert metrics.get_metric("h", MetricTypes.HISTOGRAM).unit == "Milliseconds"
    assert len(metrics.store) == 2
    assert metrics.cache_keys() == ["counter:c", "histogram:h"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, MetricsCacheIOError),
        ("[", MetricsCachePyYamlError),
        ("model_metrics: {counter: [{name: c}]}", MetricsCacheKeyError),
        ("model_metrics: {sum: [{name: c, unit: ms}]}", MetricsCacheKeyError),
        ("model_metrics: {counter: [c]}", MetricsCacheKeyError),
        ("model_metrics:", MetricsCacheValueError),
        ("ts_metrics: {}", MetricsCacheKeyError),
    ],
)
def test_a_wrong_file_of_metrics_is_refused(
    text: str | None, error: type[Exception], tmp_path: Path
) -> None:
    file = tmp_path / "metrics.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(error):
        MetricsCacheYamlImpl(str(file)).initialize_cache()


def test_the_metrics_of_a_store_are_reported(rows: list[MetricRow]) -> None:
    store = MetricsStore({0: "a", 1: "b"}, "m")
    store.add_counter("n", 2)
    store.add_time("t", 1.5, 1)
    store.add_error("e", "words")
    assert [str(one) for one in store.store[-1].dimensions] == ["Level:Error"]
    for add, unit in ((store.add_time, "ns"), (store.add_size, "TB")):
        with pytest.raises(ValueError, match="one of"):
            add("wrong", 1, unit=unit)
    emit_metrics(store.store)
    model = [["ModelName", "m"], ["Level", "Model"]]
    assert rows == [
        MetricRow("n", "Count", "counter", 2.0, model, ["a", "b"]),
        MetricRow("t", "Milliseconds", "gauge", 1.5, model, ["b"]),
    ]
    emit_metrics(None)


def test_the_older_metric_and_the_memory_of_a_process(caplog: pytest.LogCaptureFixture) -> None:
    metric = Metric("n", 1, "ms", [Dimension("a", "b")], "id", "counter")
    metric.update(2)
    assert metric.to_dict()["Value"] == 3
    assert str(metric).startswith("n.Milliseconds:3|#a:b|#hostname:")
    assert get_cpu_usage(os.getpid()) > 0
    assert get_cpu_usage("no pid") == 0
    with caplog.at_level(logging.INFO):
        check_process_mem_usage(io.StringIO(f"{os.getpid()},\n"))
    assert f"{os.getpid()}:" in caplog.messages[-1]
