"""The pool of the Celery worker: one thread for ordinary tasks. Models have their own processes.

The consumer's batches never pass through it, so the worker's main loop stays free for heartbeats
and remote control while a model computes.
"""

from __future__ import annotations

from celery.concurrency.thread import TaskPool as ThreadPool


class TaskPool(ThreadPool):
    """Celery's thread pool, under a name of ours in `inspect stats`."""
