"""The worker's Celery app where a batch may wait for known company for as long as it takes."""

from __future__ import annotations

import workers.batch_time
from workers.celery_app import deployed

workers.batch_time.KNOWN_SHARE = 1e9  # type: ignore[misc] # no wait ends by time
app = deployed()
