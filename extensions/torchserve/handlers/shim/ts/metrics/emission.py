"""The way of a metric's value out of the handler: one function takes every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class MetricRow(NamedTuple):
    """One value of one metric.

    Attributes:
        type: `counter`, `gauge` or `histogram`.
        value: what is added to a counter, observed by a histogram, or the value of a gauge.
        dimensions: the name and the value of each dimension, as text, in order.
    """

    name: str
    unit: str
    type: str
    value: float
    dimensions: list[list[str]]
    request_ids: list[str]


_sinks: list[Callable[[MetricRow], None]] = []


def send_rows_to(sink: Callable[[MetricRow], None] | None) -> None:
    """Set the function that takes every row; None discards them."""
    _sinks[:] = [] if sink is None else [sink]


def emit(row: MetricRow) -> None:
    """Pass a row on."""
    for sink in _sinks:
        sink(row)
