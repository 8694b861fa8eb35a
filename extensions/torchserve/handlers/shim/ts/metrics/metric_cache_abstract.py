"""What handlers call to report metrics: `context.metrics`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from typing_extensions import override

from ts.metrics.caching_metric import CachingMetric
from ts.metrics.dimension import Dimension
from ts.metrics.metric_cache_errors import (
    MetricsCacheKeyError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from ts.metrics.metric_type_enum import MetricTypes

TIME_UNITS = ("ms", "s")
SIZE_UNITS = ("MB", "kB", "GB", "B")


class Adders(ABC):
    """The methods for metrics of each kind, which `add_metric` takes."""

    @abstractmethod
    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: list[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Report a value."""

    def add_counter(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: list[Dimension] | None = None,
    ) -> None:
        """Add to a counter."""
        self.add_metric(name, value, "count", idx, dimensions, MetricTypes.COUNTER)

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: list[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Report a time.

        Raises:
            MetricsCacheValueError: the unit is neither `ms` nor `s`.
        """
        _one_of(unit, TIME_UNITS, "the unit for a timed metric should be one of")
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: list[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Report a size.

        Raises:
            MetricsCacheValueError: the unit is not `MB`, `kB`, `GB` or `B`.
        """
        _one_of(unit, SIZE_UNITS, "The unit for size based metric is one of")
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: list[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Report a percentage."""
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)


class MetricCacheAbstract(Adders):
    """The metrics of a model.

    Attributes:
        cache: each metric, by its type and name.
        store: the same metrics in a list.
        request_ids: the ids of the current batch, by their places; None outside of a batch.
    """

    def __init__(self, config_file_path: str) -> None:
        self.config_file_path = config_file_path
        self.cache: dict[MetricTypes, dict[str, CachingMetric]] = {one: {} for one in MetricTypes}
        self.store: list[CachingMetric] = []
        self.request_ids: dict[int, str] | None = None
        self.model_name = ""

    def set_request_ids(self, request_ids: dict[int, str] | None) -> None:
        """Set the ids of the current batch."""
        self.request_ids = request_ids

    def _ids(self, idx: int | None) -> str | None:
        if not self.request_ids:
            return None
        if idx is not None and idx in self.request_ids:
            return self.request_ids[idx]
        return ",".join(self.request_ids.values())

    @override
    def add_metric(
        self,
        name: str,
        value: float,
        unit: str | None,
        idx: int | None = None,
        dimensions: list[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Report a value; the metric is made if it does not exist.

        The dimensions `ModelName` and `Level=Model` are added where they are missing. A value that
        is about no request gets `Level=Error` alone.

        Args:
            idx: the request that it is about, by its place; None for the whole batch.

        Raises:
            MetricsCacheTypeError: an argument has the wrong type.
            AttributeError: a dimension is no `Dimension`.
        """
        self._report(name, value, unit, self._ids(idx), list(dimensions or ()), metric_type)

    def _report(
        self,
        name: str,
        value: float,
        unit: str | None,
        ids: str | None,
        dimensions: list[Dimension],
        metric_type: MetricTypes,
    ) -> None:
        own = (
            {"Level": "Error"} if ids is None else {"ModelName": self.model_name, "Level": "Model"}
        )
        names = [one.name for one in dimensions]
        every = dimensions + [Dimension(*one) for one in own.items() if one[0] not in names]
        try:
            metric = self.get_metric(name, metric_type)
        except MetricsCacheKeyError:
            names = [one.name for one in every]
            metric = self.add_metric_to_cache(name, unit, names, metric_type)
        metric.update(value, ids or "", every)

    def add_error(self, name: str, value: float, dimensions: list[Dimension] | None = None) -> None:
        """Count an error."""
        self._report(name, value, "", None, list(dimensions or ()), MetricTypes.COUNTER)

    def get_metric(
        self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER
    ) -> CachingMetric:
        """Return a metric.

        Raises:
            MetricsCacheTypeError: the name is no text, or the type no `MetricTypes`.
            MetricsCacheKeyError: no metric has that name and type.
        """
        _check(metric_name, str, "metric_name must be a text")
        _check(metric_type, MetricTypes, "metric_type must be a MetricTypes")
        try:
            return self.cache[metric_type][metric_name]
        except KeyError:
            raise MetricsCacheKeyError(
                f"there is no metric {metric_name!r} of the type {metric_type}"
            ) from None

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str | None,
        dimension_names: list[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        """Make a metric and return it; one of the same name and type is replaced.

        Raises:
            MetricsCacheTypeError: an argument has the wrong type.
        """
        _check(metric_name, str, "metric_name must be a text")
        _check(unit, str, "unit must be a text")
        _check(metric_type, MetricTypes, "metric_type must be a MetricTypes")
        if dimension_names:
            _check(dimension_names, list, "dimension_names must be a list of texts")
        metric = CachingMetric(metric_name, unit, dimension_names, metric_type)
        known = self.cache[metric_type].get(metric_name)
        self.store = [one for one in self.store if one is not known]
        self.cache[metric_type][metric_name] = metric
        self.store.append(metric)
        return metric

    def initialize_cache(self) -> None:
        """Make the metrics that the file of metrics lists."""
        raise NotImplementedError


def _check(value: object, expected: type, text: str) -> None:
    if not isinstance(value, expected):
        raise MetricsCacheTypeError(f"{text}, not {value!r}")


def _one_of(unit: Any, accepted: tuple[str, ...], what: str) -> None:
    if unit not in accepted:
        raise MetricsCacheValueError(f"{what} {list(accepted)}")
