"""The worker's Celery app with a fixed window instead of its policy, for policy.py.

Everything else is unchanged.
"""

from __future__ import annotations

import workers.models.served_model
from benchmarks.batching.fixed_window import FixedWindow
from workers.celery.app import deployed

workers.models.served_model.Batcher = FixedWindow  # type: ignore[attr-defined] # the policy to compare with
app = deployed()
