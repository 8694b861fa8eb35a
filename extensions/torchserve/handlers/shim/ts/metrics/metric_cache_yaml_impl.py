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
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from ts.metrics.metric_type_enum import MetricTypes

#: The file with the metrics that every model has.
DEFAULT: Final = str(Path(__file__).parents[1] / "configs/metrics.yaml")
_SECTION: Final = "model_metrics"


class MetricsCacheYamlImpl(MetricCacheAbstract):
    """The metrics of a model.

    Raises:
        MetricsCacheTypeError: no file is given.
        MetricsCacheIOError: it cannot be read.
        MetricsCachePyYamlError: it is not YAML.
    """

    def __init__(self, config_file_path: str) -> None:
        super().__init__(config_file_path)
        self._parse_yaml_file(config_file_path)

    def _parse_yaml_file(self, config_file_path: object) -> None:
        if not isinstance(config_file_path, str) or not config_file_path:
            raise MetricsCacheTypeError(f"expected the path of a file, got {config_file_path!r}")
        try:
            text = Path(config_file_path).read_text(encoding="utf-8")
            self._parsed_file: Any = yaml.safe_load(text)
        except OSError as error:
            raise MetricsCacheIOError(f"{config_file_path}: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise MetricsCachePyYamlError(f"{config_file_path}: {error}") from error

    def _parse_metrics_section(self, key: str = _SECTION) -> Any:
        document = self._parsed_file
        if not isinstance(document, dict) or key not in document:
            raise MetricsCacheKeyError(f"{self.config_file_path}: there is no section {key}")
        return document[key]

    @override
    def initialize_cache(self) -> None:
        """Make the metrics of the file's section `model_metrics`.

        Raises:
            MetricsCacheKeyError: there is no such section, or a metric lacks a member.
            MetricsCacheValueError: the section is empty.
        """
        section = self._parse_metrics_section()
        if not section:
            raise MetricsCacheValueError(f"{self.config_file_path}: {_SECTION} is empty")
        for kind, metrics in section.items():
            try:
                for one in metrics or ():
                    self.add_metric_to_cache(
                        one["name"], one["unit"], one["dimensions"], MetricTypes(kind)
                    )
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise MetricsCacheKeyError(
                    f"{self.config_file_path}: {_SECTION}.{kind}: a metric needs name, unit and "
                    f"dimensions, and the types are {', '.join(one.value for one in MetricTypes)}: "
                    f"{error}"
                ) from error

    def cache_keys(self) -> list[str]:
        """Return `type:name` of each metric."""
        return [f"{kind.value}:{name}" for kind, names in self.cache.items() for name in names]
