"""The background worker: `celery -A workers.background.app worker`, with a pool of threads.

It delivers webhooks as Celery tasks and runs the pipelines of the models file in a thread
(`workers/background/pipelines/orchestrator.py`). A task may run twice: its message is acknowledged
when the task has ended, and requeued if its worker dies before (`workers/background/transport.py`).
"""

from __future__ import annotations

import logging
import os
import secrets
from functools import cache
from typing import Any, Final

import msgspec
from celery import Celery, states
from celery.backends.base import DisabledBackend
from celery.exceptions import Reject
from kombu import Queue
from typing_extensions import override

from headrace.config.model_catalog import Catalog, load_catalog
from headrace.config.settings import Settings, load_settings
from headrace.errors import BrokerError, ConfigError
from headrace.redis import keys
from headrace.redis.celery_url import celery_url
from headrace.webhooks.task_message import TASK, WebhookTask
from workers.background import transport
from workers.background.bootsteps import LivenessStep, PipelinesStep, WebhooksStep
from workers.background.webhooks.delivery import WebhookDeliverer
from workers.celery.config import common_conf, deployed_step, log_as, refuse

logger = logging.getLogger(__name__)

#: The number of tasks that run at once. Most of them wait for receivers of webhooks.
THREADS: Final = 16
_FIXED: Final = f"a background worker always has {THREADS} threads: run another background worker"
#: Remote-control commands that do not work here, with what to do instead.
REFUSED: Final = {
    "pool_grow": _FIXED,
    "pool_shrink": _FIXED,
    "autoscale": _FIXED,
    "pool_restart": "the pool of a background worker cannot restart: restart the worker, which "
    "runs its unfinished tasks again",
}


def create_app(settings: Settings, catalog: Catalog, owner: str) -> Celery:
    """Return the Celery app of a deployment's background workers.

    Args:
        settings: the deployment's settings.
        catalog: its models and pipelines.
        owner: this incarnation of the worker; a new name at each start.

    Raises:
        ConfigError: `redis_url` is not set, or `webhook_ca_file` cannot be read.
    """
    url = settings.redis_url
    if not url:
        raise ConfigError(
            "no Redis URL is set for the background worker",
            hint="Set HEADRACE_REDIS_URL, or start everything with `headrace up`.",
        )
    target = celery_url(url)
    app = Celery("headrace-errands", broker=target.url, backend=NoResults, set_as_current=False)
    app.conf.update(
        **common_conf(target, keys.BACKGROUND_TASKS, {"owner": owner, "priority_steps": [0]}),
        task_acks_late=True,
        task_default_queue=keys.BACKGROUND_TASKS,
        task_ignore_result=True,
        task_queues=[Queue(keys.BACKGROUND_TASKS)],
        task_reject_on_worker_lost=True,
        # Threads cannot be cancelled. A task whose acknowledgement fails runs again.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_concurrency=THREADS,
        worker_pool="threads",
        worker_prefetch_multiplier=1,
    )
    delivery = WebhookDeliverer(settings, url)
    add_webhook_task(app, delivery)
    app.steps["consumer"].add(deployed_step(LivenessStep, redis_url=url, owner=owner))
    app.steps["worker"].add(deployed_step(WebhooksStep, delivery=delivery))
    if catalog.pipelines:
        step = deployed_step(
            PipelinesStep, settings=settings, catalog=catalog, redis_url=url, owner=owner
        )
        app.steps["worker"].add(step)
    return app


def add_webhook_task(app: Celery, delivery: WebhookDeliverer) -> None:
    """Register the task that delivers a webhook."""

    @app.task(name=TASK, shared=False)
    def deliver(**arguments: Any) -> None:
        try:
            delivery.deliver(msgspec.convert(arguments["errand"], WebhookTask))
        except BrokerError as error:
            logger.warning("webhook waits for Redis", extra={"reason": error.message})
            # Requeued, so that it runs again once Redis accepts writes.
            raise Reject(str(error), requeue=True) from error


class NoResults(DisabledBackend):
    """A result backend that stores nothing, and reports every task as pending.

    This worker receives a revoke of a model's job too, and Celery then reads the job's result.
    Celery's own disabled backend raises there.
    """

    @override
    def get_state(self, task_id: str) -> str:
        """Return PENDING for every task."""
        return states.PENDING


@cache
def deployed() -> Celery:
    """Return the app of the deployment that the environment describes.

    Raises:
        ConfigError: a setting or the models file is invalid.
    """
    settings = load_settings(None, os.environ, {})
    owner = os.environ.get("HEADRACE_INCARNATION") or f"errands-{secrets.token_hex(6)}"
    transport.install()
    refuse(REFUSED)
    log_as("errands", settings)
    catalog = load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    return create_app(settings, catalog, owner)


def __getattr__(name: str) -> Celery:
    """Build the app when Celery looks for `app`, and not at the import."""
    if name == "app":
        return deployed()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
