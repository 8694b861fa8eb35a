"""The metrics of an older interface, which tests of handlers use."""

from __future__ import annotations

from typing import Any

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric
from ts.metrics.metric_cache_abstract import SIZE_UNITS, TIME_UNITS


class MetricsStore:
    """Keeps the last value of each metric.

    Args:
        request_ids: the ids of the batch, by their places, or one id.
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
        ids: str | None,
        dimensions: list[Dimension] | None,
        method: str | None = None,
    ) -> None:
        own = [Dimension("ModelName", self.model_name), Dimension("Level", "Model")]
        every = [*(dimensions or ()), *(own if ids is not None else [Dimension("Level", "Error")])]
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
        self._add(name, value, "count", self._id(idx), dimensions, "counter")

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: list[Dimension] | None = None,
    ) -> None:
        """Keep a time.

        Raises:
            ValueError: the unit is neither `ms` nor `s`.
        """
        if unit not in TIME_UNITS:
            raise ValueError(f"the unit for a timed metric should be one of {list(TIME_UNITS)}")
        self._add(name, value, unit, self._id(idx), dimensions)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: list[Dimension] | None = None,
    ) -> None:
        """Keep a size.

        Raises:
            ValueError: the unit is not `MB`, `kB`, `GB` or `B`.
        """
        if unit not in SIZE_UNITS:
            raise ValueError("The unit for size based metric is one of ['MB','kB', 'GB', 'B']")
        self._add(name, value, unit, self._id(idx), dimensions)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: list[Dimension] | None = None,
    ) -> None:
        """Keep a percentage."""
        self._add(name, value, "percent", self._id(idx), dimensions)

    def add_error(self, name: str, value: Any, dimensions: list[Dimension] | None = None) -> None:
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
        self._add(name, value, unit, self._id(idx), dimensions)
