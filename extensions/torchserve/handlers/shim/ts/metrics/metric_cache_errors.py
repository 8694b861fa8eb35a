"""The errors of metrics. Each is also the error of Python that a handler may expect."""

import yaml


class GeneralMetricsCacheError(Exception):
    """A metric cannot be used."""


class MetricsCacheIOError(OSError):
    """The file of metrics cannot be read."""


class MetricsCachePyYamlError(yaml.YAMLError):
    """The file of metrics is not valid YAML."""


class MetricsCacheTypeError(TypeError):
    """A value has the wrong type."""


class MetricsCacheValueError(ValueError):
    """A value is not one of those that are accepted."""


class MetricsCacheKeyError(KeyError):
    """There is no such metric, or no such member in the file of metrics."""
