"""The entry point of Celery's commands: `celery -A workers.celery_app worker`."""

from __future__ import annotations

from workers.celery.app import deployed
from workers.celery.config import built_on_demand

__getattr__ = built_on_demand(__name__, deployed)
