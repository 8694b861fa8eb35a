"""The types of metrics."""

from enum import Enum


class MetricTypes(Enum):
    """A type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
