"""The metric of an older interface, with its value."""

from __future__ import annotations

import socket
import time
from typing import Any

from typing_extensions import override

from ts.metrics.dimension import Dimension
from ts.metrics.unit import Units


class Metric:
    """A metric with its value; those of the method `counter` are added up."""

    def __init__(
        self,
        name: str,
        value: float,
        unit: str | None,
        dimensions: list[Dimension] | None = None,
        request_id: str | None = None,
        metric_method: str | None = None,
    ) -> None:
        self.name = name
        self.value = value
        self.unit = Units().units.get(unit, unit) or ""
        self.dimensions = list(dimensions or ())
        self.request_id = request_id
        self.metric_method = metric_method

    def update(self, value: float) -> None:
        """Add a value to a counter; replace that of any other metric."""
        self.value = self.value + value if self.metric_method == "counter" else value

    @override
    def __str__(self) -> str:
        dimensions = ",".join(map(str, self.dimensions))
        text = (
            f"{self.name}.{self.unit}:{self.value}|#{dimensions}"
            f"|#hostname:{socket.gethostname()},timestamp:{int(time.time())}"
        )
        return f"{text},requestID:{self.request_id}" if self.request_id else text

    def to_dict(self) -> dict[str, Any]:
        """Return the metric as JSON values."""
        return {
            "MetricName": self.name,
            "Value": self.value,
            "Unit": self.unit,
            "Dimensions": [one.to_dict() for one in self.dimensions],
            "Timestamp": int(time.time()),
            "HostName": socket.gethostname(),
            "RequestId": self.request_id,
        }
