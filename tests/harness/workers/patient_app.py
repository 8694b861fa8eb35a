"""The worker's Celery app in which a batch may wait for expected arrivals without limit."""

from __future__ import annotations

import workers.batching.estimates
from workers.celery.app import deployed

workers.batching.estimates.KNOWN_SHARE = 1e9  # type: ignore[misc] # no wait ends by time
app = deployed()
