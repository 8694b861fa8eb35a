"""The metrics of an older interface, which tests of handlers use."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric
from ts.metrics.metric_cache_abstract import Adders
from ts.metrics.metric_type_enum import MetricTypes


class MetricsStore(Adders):
    """Keeps the last value of each metric, with the batch's ids by their places, or one id."""

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

    def add_error(self, name: str, value: Any, dimensions: list[Dimension] | None = None) -> None:
        """Keep an error."""
        self._add(name, value, "", None, dimensions)

    @override
    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: list[Dimension] | None = None,
        metric_type: MetricTypes | None = None,
    ) -> None:
        """Keep a value of any unit; those of a counter are added up."""
        method = "counter" if metric_type is MetricTypes.COUNTER else None
        self._add(name, value, unit, self._id(idx), dimensions, method)
