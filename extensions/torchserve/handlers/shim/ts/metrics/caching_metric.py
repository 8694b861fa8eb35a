"""A metric of handlers, which keeps no value: each update is a row."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from ts.metrics.dimension import Dimension
from ts.metrics.emission import MetricRow, emit
from ts.metrics.metric_abstract import MetricAbstract
from ts.metrics.metric_type_enum import MetricTypes

logger = logging.getLogger(__name__)


class CachingMetric(MetricAbstract):
    """A metric whose values are passed on one by one."""

    @override
    def add_or_update(
        self, value: float, dimension_values: Sequence[Any] = (), request_id: Any = ""
    ) -> None:
        """Report a value. A wrong one is logged, and never fails the handler.

        Args:
            request_id: the requests that it is about: ids with commas between them, or a list.
        """
        if len(dimension_values) != len(self.dimension_names):
            logger.error(
                "the metric %s has the dimensions %s, but got %d values for them",
                self.metric_name, self.dimension_names, len(dimension_values),
            )  # fmt: skip
            return
        dimensions = [
            [name, str(one)]
            for name, one in zip(self.dimension_names, dimension_values, strict=True)
        ]
        self.emit_metrics(value, dimensions, request_id)

    def update(
        self, value: float, request_id: Any = "", dimensions: Sequence[Dimension] = ()
    ) -> None:
        """Report a value with dimensions of its own, which replace those of the metric."""
        self.dimension_names = [one.name for one in dimensions]
        self.emit_metrics(value, [[one.name, str(one.value)] for one in dimensions], request_id)

    def emit_metrics(self, value: float, dimensions: list[list[str]], request_id: Any = "") -> None:
        """Pass a value on as a row."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            logger.error("the metric %s got %r, which is no finite number", self.metric_name, value)
            return
        if self.metric_type is MetricTypes.COUNTER and number < 0:
            logger.error("the counter %s got %s, but it cannot decrease", self.metric_name, number)
            return
        ids = request_id.split(",") if isinstance(request_id, str) else list(request_id or ())
        known = [str(one) for one in ids if one]
        kind = self.metric_type.value
        emit(MetricRow(self.metric_name, self.unit, kind, number, dimensions, known))
