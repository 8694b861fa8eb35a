"""The pool of the Celery worker: one thread for ordinary tasks; models have their own processes.

The consumer's batches never pass through it, so that the worker's main loop stays free to send
heartbeats and to answer remote control while a model computes.
"""

from __future__ import annotations

from celery.concurrency.thread import TaskPool as ThreadPool


class TaskPool(ThreadPool):
    """Celery's thread pool under a name that says whose it is in `inspect stats`."""
