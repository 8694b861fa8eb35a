"""What all metrics of handlers have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.unit import Units


class MetricAbstract(ABC):
    """A metric; its unit is given by a symbol, such as `ms`, or by any name."""

    def __init__(
        self,
        metric_name: str,
        unit: str | None,
        dimension_names: list[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        self.metric_name = metric_name
        self.unit = Units().units.get(unit, unit) or ""
        self.dimension_names = list(dimension_names or ())
        self.metric_type = metric_type

    @abstractmethod
    def add_or_update(
        self, value: float, dimension_values: Sequence[Any] = (), request_id: Any = ""
    ) -> None:
        """Report a value."""
