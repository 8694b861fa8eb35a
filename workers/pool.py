"""The pool of the Celery worker: one thread for ordinary tasks. Models run in processes of their own.

The consumer's batches never pass through it, so that the worker's main loop stays free to send
heartbeats and to answer remote control while a model computes.
"""

from __future__ import annotations

from typing import Any

from celery.concurrency.thread import TaskPool as ThreadPool


class TaskPool(ThreadPool):
    """Celery's thread pool under a name that says what it is beside."""

    def _get_info(self) -> Any:
        info = super()._get_info()
        info["implementation"] = "workers.pool:TaskPool"
        return info
