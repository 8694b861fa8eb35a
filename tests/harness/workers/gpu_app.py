"""The worker's Celery app on a host whose driver tells of two GPUs; nothing runs on them."""

from __future__ import annotations

from tests.harness.fakes.nvml import TWO, install
from workers.celery.app import deployed

install(*TWO)
app = deployed()
