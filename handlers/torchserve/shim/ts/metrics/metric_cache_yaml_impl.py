"""The metrics of a model, as `metrics.yaml` lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml
from typing_extensions import override

from ts.metrics.metric_cache_abstract import MetricCacheAbstract
from ts.metrics.metric_cache_errors import (
    MetricsCacheIOError,
    MetricsCacheKeyError,
    MetricsCachePyYamlError,
)
from ts.metrics.metric_type_enum import MetricTypes

_SECTION: Final = "model_metrics"
#: The metrics that every model has.
_OWN: Final = ("HandlerTime", "PredictionTime")


class MetricsCacheYamlImpl(MetricCacheAbstract):
    """The metrics of a model.

    Args:
        config_file_path: the `metrics.yaml`; "" for the metrics that every model has.
    """

    @override
    def initialize_cache(self) -> None:
        """Make the metrics of the file's section `model_metrics`.

        Raises:
            MetricsCacheIOError: the file cannot be read.
            MetricsCachePyYamlError: it is not YAML.
            MetricsCacheKeyError: a metric lacks a name or a unit.
        """
        if not self.config_file_path:
            for name in _OWN:
                self.add_metric_to_cache(name, "ms", ["ModelName", "Level"], MetricTypes.GAUGE)
            return
        for kind, metrics in self._section().items():
            try:
                for one in metrics or ():
                    names = list(one.get("dimensions") or ())
                    self.add_metric_to_cache(one["name"], one["unit"], names, MetricTypes(kind))
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise MetricsCacheKeyError(
                    f"{self.config_file_path}: {_SECTION}.{kind}: a metric needs name and unit, "
                    f"and the types are {', '.join(one.value for one in MetricTypes)}: {error}"
                ) from error

    def _section(self) -> dict[str, Any]:
        try:
            text = Path(self.config_file_path).read_text(encoding="utf-8")
            document = yaml.safe_load(text)
        except OSError as error:
            raise MetricsCacheIOError(f"{self.config_file_path}: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise MetricsCachePyYamlError(f"{self.config_file_path}: {error}") from error
        section = document.get(_SECTION) if isinstance(document, dict) else None
        return section if isinstance(section, dict) else {}
