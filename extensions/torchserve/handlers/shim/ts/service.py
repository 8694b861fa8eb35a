"""The exception by which a handler answers with a status of its own, and metrics of a store."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from ts.metrics.emission import MetricRow, emit
from ts.metrics.metric import Metric
from ts.utils.util import PredictionException

__all__ = ["PREDICTION_METRIC", "PredictionException", "emit_metrics"]

#: The metric of the time that `handle` takes.
PREDICTION_METRIC = "PredictionTime"
logger = logging.getLogger(__name__)


def emit_metrics(metrics: Iterable[Metric] | None) -> None:
    """Report metrics with their values, such as those of a `MetricsStore`.

    A value that is no number, such as the text of an error, is in the log only.
    """
    for one in metrics or ():
        logger.info("[METRICS]%s", one)
        value: Any = one.value
        if not isinstance(value, int | float):
            continue
        kind = "counter" if one.metric_method == "counter" else "gauge"
        dimensions = [[each.name, str(each.value)] for each in one.dimensions]
        ids = str(one.request_id).split(",") if one.request_id else []
        emit(MetricRow(one.name, one.unit, kind, float(value), dimensions, ids))
