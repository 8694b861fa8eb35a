"""The errors of metrics."""


class MetricsCacheIOError(Exception):
    """The file of metrics cannot be read."""


class MetricsCachePyYamlError(Exception):
    """The file of metrics is not valid YAML."""


class MetricsCacheTypeError(Exception):
    """A value has the wrong type."""


class MetricsCacheValueError(Exception):
    """A value is not one of those that are accepted."""


class MetricsCacheKeyError(Exception):
    """There is no such metric."""


class GeneralMetricsCacheError(Exception):
    """A metric cannot be used."""
