"""The worker's Celery app with a fixed window in place of its policy; for benchmarks.policy alone.

Everything else is the worker's own.
"""

from __future__ import annotations

import workers.models.served_model
from benchmarks.window import FixedWindow
from workers.celery.app import deployed

workers.models.served_model.Batcher = FixedWindow  # type: ignore[attr-defined] # the policy to compare with
app = deployed()
