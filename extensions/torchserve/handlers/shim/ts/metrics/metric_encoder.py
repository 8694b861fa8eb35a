"""Metrics as JSON."""

from __future__ import annotations

import json
from typing import Any

from typing_extensions import override

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric


class MetricEncoder(json.JSONEncoder):
    """Writes metrics and dimensions too."""

    @override
    def default(self, o: Any) -> Any:
        """Return the members of a metric or a dimension."""
        return o.to_dict() if isinstance(o, (Metric, Dimension)) else super().default(o)
