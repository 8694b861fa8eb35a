"""Writes metrics in Prometheus' text format, fast enough for thousands of series.

prometheus-client writes the names and the escaped labels. Its text is cached with a placeholder for
each value, as long as the metric has the same series. A scrape then only fills in the numbers,
which takes 4 % of the CPU (`python -m benchmarks.job_path.pieces_cpu`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from api.observability.metric_families import Family

#: The values of a series' labels.
Labels = tuple[str, ...]


class MetricSamples(NamedTuple):
    """The values of one metric.

    Attributes:
        series: the labels of each series.
        values: one for each series. A summary has its count and its sum. A histogram has the counts
            at or below each bound, then the count of all, then the sum. Either all are numbers, or
            all are text.
        bounds: the bounds of a histogram as text, `+Inf` last.
    """

    family: Family
    series: Sequence[Labels]
    values: Sequence[float] | Sequence[bytes]
    bounds: tuple[str, ...] = ()


class Exposition:
    """Writes the metrics of one API process."""

    def __init__(self) -> None:
        # The series, the placeholder and the text with placeholders of each metric.
        self._templates: dict[str, tuple[list[Labels], bytes, bytes]] = {}

    def text(self, metrics: Iterable[MetricSamples]) -> bytes:
        """Return the answer to a scrape."""
        texts = []
        for samples in metrics:
            name, series = samples.family.name, list(samples.series)
            placeholder = _placeholder(samples)
            cached = self._templates.get(name)
            if cached is None or cached[:2] != (series, placeholder):
                cached = (series, placeholder, _template(samples, placeholder))
                self._templates[name] = cached
            texts.append(cached[2] % tuple(samples.values))
        return b"".join(texts)


class _OneMetric(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    @override
    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _placeholder(samples: MetricSamples) -> bytes:
    """Return the format of a value: text as it is, a number as Python writes it."""
    return b" %b\n" if samples.values and isinstance(samples.values[0], bytes) else b" %a\n"


def _template(samples: MetricSamples, placeholder: bytes) -> bytes:
    lines = generate_latest(_OneMetric(_metric(samples))).removesuffix(b"\n").replace(b"%", b"%%")
    return b"".join(
        line + b"\n" if line.startswith(b"#") else line.rpartition(b" ")[0] + placeholder
        for line in lines.split(b"\n")
    )


def _metric(samples: MetricSamples) -> Metric:
    name, kind, text, labels = samples.family
    if kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for values in samples.series:
            histogram.add_metric(values, [(bound, 0) for bound in samples.bounds], sum_value=0)
        return histogram
    if kind == "summary":
        summary = SummaryMetricFamily(name, text, labels=labels)
        for values in samples.series:
            summary.add_metric(values, count_value=0, sum_value=0)
        return summary
    plain = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    metric: CounterMetricFamily | GaugeMetricFamily = plain(name, text, labels=labels)
    for values in samples.series:
        metric.add_metric(values, 0)
    return metric
