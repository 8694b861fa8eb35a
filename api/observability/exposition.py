"""Writes metrics in Prometheus' text format, fast enough for thousands of series.

Names, labels and their escaping are prometheus-client's: what it writes for a metric is kept, with
a hole for each value, as long as the metric has the same series. A scrape then only fills in
numbers.
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

#: A part of the text is about so long.
PART_BYTES: Final = 32 * 1024
#: The values of a series' labels.
Labels = tuple[str, ...]


class MetricSamples(NamedTuple):
    """What there is to say of one metric.

    Attributes:
        series: the labels of each.
        values: of each series one; of a summary its count and its sum; of a histogram the counts
            at or below each bound, then the count of all, then the sum; all numbers, or all text.
        bounds: of a histogram, as they are shown, `+Inf` last.
    """

    family: Family
    series: Sequence[Labels]
    values: Sequence[float] | Sequence[bytes]
    bounds: tuple[str, ...] = ()


class Exposition:
    """Writes the metrics of one API process."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[list[Labels], bytes, bytes]] = {}

    def text(self, metrics: Iterable[MetricSamples]) -> list[bytes]:
        """The body of an answer to a scrape, in parts.

        The whole may be half a megabyte, and to put it together costs more than to fill it in:
        memory of that size comes from the kernel anew each time.
        """
        parts, some, length = [], [], 0
        for found in metrics:
            name = found.family.name
            kept, series, hole = self._kept.get(name), list(found.series), _hole(found)
            if kept is None or kept[0] != series or kept[1] != hole:
                kept = self._kept[name] = (series, hole, _with_holes(found, hole))
            some.append(kept[2] % tuple(found.values))
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


def _hole(found: MetricSamples) -> bytes:
    """What is filled in: bytes as they are, a number as Python writes it."""
    return b" %b\n" if found.values and isinstance(found.values[0], bytes) else b" %a\n"


def _with_holes(found: MetricSamples, hole: bytes) -> bytes:
    lines = generate_latest(_One(_metric(found))).removesuffix(b"\n").split(b"\n")
    return b"".join(_emptied(line.replace(b"%", b"%%"), hole) for line in lines)


def _emptied(line: bytes, hole: bytes) -> bytes:
    return line + b"\n" if line.startswith(b"#") else line.rpartition(b" ")[0] + hole


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
