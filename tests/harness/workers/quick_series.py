"""The background worker, in whose time series a minute is `TEST_MINUTE_S` long."""

from __future__ import annotations

import os
from typing import Any

from workers.background.app import SeriesStep
from workers.background.series import SeriesWriter


def build(self: SeriesStep, _: Any) -> SeriesWriter:
    return SeriesWriter(self.redis_url, self.catalog, float(os.environ["TEST_MINUTE_S"]))


SeriesStep.build = build  # type: ignore[method-assign, assignment]

from workers.background.app import app  # noqa: E402 - it is begun with this

__all__ = ["app"]
