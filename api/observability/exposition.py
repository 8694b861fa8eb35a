"""Writes metrics in Prometheus' text format, fast enough for thousands of series.

prometheus-client writes names, labels and escapes. Its text of a metric is cached with a
placeholder for each value, while the metric has the same series; a scrape then fills in numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

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

#: The approximate size of one part of the text.
PART_BYTES: Final = 32 * 1024
#: The values of a series' labels.
Labels = tuple[str, ...]


class MetricSamples(NamedTuple):
    """All samples of one metric.

    Attributes:
        series: the labels of each series.
        values: one per series; for a summary its count and sum; for a histogram the counts at or
            below each bound, then the total count, then the sum. All numbers, or all text.
        bounds: the bounds of a histogram as text, `+Inf` last.
    """

    family: Family
    series: Sequence[Labels]
    values: Sequence[float] | Sequence[bytes]
    bounds: tuple[str, ...] = ()


class Exposition:
    """Writes the metrics of one API process."""

    def __init__(self) -> None:
        self._templates: dict[str, tuple[list[Labels], bytes, bytes]] = {}

    def text(self, metrics: Iterable[MetricSamples]) -> list[bytes]:
        """Return the body of an answer to a scrape, in parts.

        The whole may be half a megabyte, and joining it takes longer than filling it in: the
        kernel maps memory of that size again each time.
        """
        parts, some, length = [], [], 0
        for found in metrics:
            name = found.family.name
            template, series = self._templates.get(name), list(found.series)
            placeholder = _placeholder(found)
            if template is None or template[0] != series or template[1] != placeholder:
                template = self._templates[name] = (
                    series,
                    placeholder,
                    _template(found, placeholder),
                )
            some.append(template[2] % tuple(found.values))
            length += len(some[-1])
            if length >= PART_BYTES:
                parts.append(b"".join(some))
                some, length = [], 0
        parts.append(b"".join(some))
        return parts


class _One(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    @override
    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _placeholder(found: MetricSamples) -> bytes:
    """Return the placeholder of a value: bytes as they are, a number as Python formats it."""
    return b" %b\n" if found.values and isinstance(found.values[0], bytes) else b" %a\n"


def _template(found: MetricSamples, placeholder: bytes) -> bytes:
    lines = generate_latest(_One(_metric(found))).removesuffix(b"\n").split(b"\n")
    return b"".join(_line_template(line.replace(b"%", b"%%"), placeholder) for line in lines)


def _line_template(line: bytes, placeholder: bytes) -> bytes:
    return line + b"\n" if line.startswith(b"#") else line.rpartition(b" ")[0] + placeholder


def _metric(found: MetricSamples) -> Metric:
    name, kind, text, labels = found.family
    if kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for one in found.series:
            histogram.add_metric(one, buckets=[(bound, 0) for bound in found.bounds], sum_value=0)
        return histogram
    if kind == "summary":
        summary = SummaryMetricFamily(name, text, labels=labels)
        for one in found.series:
            summary.add_metric(one, count_value=0, sum_value=0)
        return summary
    plain = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    metric: CounterMetricFamily | GaugeMetricFamily = plain(name, text, labels=labels)
    for one in found.series:
        metric.add_metric(one, 0)
    return metric
