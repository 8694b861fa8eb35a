"""What is written is what prometheus-client would write, faster."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from api.observability.exposition import Exposition, MetricSamples
from api.observability.metric_families import Family

ODD = 'a "quoted" \\ back\nslash at 100% {x="y"} é'
JOBS = Family("headrace_jobs", "counter", "Jobs, 100% of them.", ("model", "reason"))
TOOK = Family("headrace_took_seconds", "histogram", "What it took.", ("model",))
LOADS = Family("headrace_load_seconds", "summary", "What a load took.", ("model",))
UP = Family("headrace_up", "gauge", "Whether it is.")


def written(exposition: Exposition, *found: MetricSamples) -> bytes:
    return exposition.text(found)


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_labels_are_escaped() -> None:
    text = written(Exposition(), MetricSamples(JOBS, [("m", ODD), (ODD, "plain")], [3, 4.5]))
    assert samples(text) == {
        ("headrace_jobs_total", (("model", "m"), ("reason", ODD))): 3,
        ("headrace_jobs_total", (("model", ODD), ("reason", "plain"))): 4.5,
    }


def test_values_change_and_series_come_and_go() -> None:
    exposition = Exposition()
    for series, values in (
        ([("a", "x")], [1]),
        ([("a", "x")], [2]),
        ([("a", "x"), ("b", "y")], [2, 7]),
        ([("b", "y")], [8]),
        ([], []),
    ):
        text = written(
            exposition, MetricSamples(JOBS, series, values), MetricSamples(UP, [()], [1])
        )
        shown = {labels: value for (name, labels), value in samples(text).items() if labels}
        assert shown == {
            (("model", model), ("reason", reason)): value
            for (model, reason), value in zip(series, values, strict=True)
        }
        assert text.count(b"# TYPE") == 2


def test_the_library_is_asked_once_however_the_same_series_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exposition, series = Exposition(), [("a", "x"), ("b", "y")]
    first = written(exposition, MetricSamples(JOBS, series, [1, 2]))
    monkeypatch.delattr("api.observability.exposition.generate_latest")
    for same in (series, tuple(series), [*series[:1], ("b", "y")]):
        assert written(exposition, MetricSamples(JOBS, same, [1, 2])) == first
    monkeypatch.undo()
    assert written(exposition, MetricSamples(JOBS, series, [b"1", b"2"])) == first


@pytest.mark.parametrize("kind", ["histogram", "summary"])
def test_it_is_prometheus_clients_own_text(kind: str) -> None:
    class Collector:
        def collect(self) -> list[HistogramMetricFamily | SummaryMetricFamily]:
            if kind == "summary":
                summary = SummaryMetricFamily(LOADS.name, LOADS.text, labels=LOADS.labels)
                summary.add_metric(["m"], count_value=2, sum_value=1.25)
                return [summary]
            histogram = HistogramMetricFamily(TOOK.name, TOOK.text, labels=TOOK.labels)
            buckets: list[tuple[str, float]] = [("0.5", 1), ("+Inf", 3)]
            histogram.add_metric(["m"], buckets=buckets, sum_value=0.125)
            return [histogram]

    found = (
        MetricSamples(LOADS, [("m",)], [2.0, 1.25])
        if kind == "summary"
        else MetricSamples(TOOK, [("m",)], [b"1.0", b"3.0", b"3.0", b"0.125"], ("0.5", "+Inf"))
    )
    assert written(Exposition(), found) == generate_latest(Collector())
