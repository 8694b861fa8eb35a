"""The metrics of an older interface, which tests of handlers use."""

from __future__ import annotations

from typing import Any

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric


class MetricsStore:
    """Keeps the last value of each metric.

    Args:
        request_ids: the ids of the batch, by their places, or one id.
        model_name: the model.
    """

    def __init__(self, request_ids: Any, model_name: str | None) -> None:
        self.store: list[Metric] = []
        self.cache: dict[str, Metric] = {}
        self.request_ids = request_ids
        self.model_name = model_name

    def _id(self, idx: int | None) -> str | None:
        if not isinstance(self.request_ids, dict):
            return None if self.request_ids is None else str(self.request_ids)
        if idx is not None and idx in self.request_ids:
            return str(self.request_ids[idx])
        return ",".join(self.request_ids.values())

    def _add(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None,
        dimensions: list[Dimension] | None,
        method: str | None = None,
    ) -> None:
        ids = self._id(idx)
        level = "Error" if ids is None else "Model"
        own = [Dimension("ModelName", self.model_name), Dimension("Level", level)]
        every = [*(dimensions or ()), *own]
        key = "-".join([name, unit, str(ids), *map(str, every)])
        known = self.cache.get(key)
        if known is not None:
            known.update(value)
            return
        self.cache[key] = Metric(name, value, unit, every, ids, method)
        self.store.append(self.cache[key])

    def add_counter(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: list[Dimension] | None = None,
    ) -> None:
        """Add to a counter."""
        self._add(name, value, "count", idx, dimensions, "counter")

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: list[Dimension] | None = None,
    ) -> None:
        """Keep a time."""
        self._add(name, value, unit, idx, dimensions)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: list[Dimension] | None = None,
    ) -> None:
        """Keep a size."""
        self._add(name, value, unit, idx, dimensions)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: list[Dimension] | None = None,
    ) -> None:
        """Keep a percentage."""
        self._add(name, value, "percent", idx, dimensions)

    def add_error(self, name: str, value: float, dimensions: list[Dimension] | None = None) -> None:
        """Keep an error."""
        self._add(name, value, "", None, dimensions)

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: list[Dimension] | None = None,
    ) -> None:
        """Keep a value of any unit."""
        self._add(name, value, unit, idx, dimensions)
