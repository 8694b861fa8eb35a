"""The entry point of Celery's commands: `celery -A workers.celery_app worker`."""

from __future__ import annotations

from celery import Celery

from workers.celery.app import deployed


def __getattr__(name: str) -> Celery:
    """Build the app when Celery looks for `app`, and not at the import."""
    if name == "app":
        return deployed()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
