"""The background worker: `celery -A workers.background.app worker`, with a pool of threads.

It delivers webhooks as Celery tasks, and runs the pipelines of the models file in a thread
(`workers/background/pipelines/orchestrator.py`). Another one writes the models' time series
(`workers/background/series.py`). A task may run twice: its message is acknowledged when the task
has ended, and requeued if its worker dies before (`workers/background/transport.py`).
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
from celery.bootsteps import StartStopStep
from celery.exceptions import Reject
from kombu import Queue
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from typing_extensions import override

from headrace.config.model.catalog import Catalog
from headrace.config.settings import Settings
from headrace.errors import BrokerError
from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.redis.url import celery_url
from headrace.server import recovery
from headrace.server.health.liveness import WorkerLiveness
from headrace.webhooks.task_message import TASK, WebhookTask
from workers.background import transport
from workers.background.pipelines.orchestrator import PipelineOrchestrator
from workers.background.series import SeriesWriter
from workers.background.webhooks.delivery import WebhookDeliverer
from workers.celery.celery_internals import (
    drop_unreadable_messages,
    log_no_rejections,
    treat_as_lost_connections,
)
from workers.celery.config import (
    ThreadStep,
    built_on_demand,
    common_conf,
    deployed_step,
    deployment,
    log_as,
    refuse,
)

logger = logging.getLogger(__name__)

#: The number of tasks that run at once. They wait for Redis alone.
THREADS: Final = 16
#: Seconds between two heartbeats.
HEARTBEAT_S: Final = 3.0
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
    """Return the Celery app of a deployment's background workers; `owner` is new at each start.

    Raises:
        ConfigError: `redis_url` is not set, or `webhook_ca_file` cannot be read.
    """
    url = settings.needed_redis_url("a background worker")
    target = celery_url(url)
    app = Celery("headrace-background", broker=target.url, backend=NoResults, set_as_current=False)
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
    delivery = WebhookDeliverer(settings, url, owner=owner)
    add_webhook_task(app, delivery)
    app.steps["consumer"].add(deployed_step(LivenessStep, redis_url=url, owner=owner))
    app.steps["worker"].add(deployed_step(WebhooksStep, delivery=delivery))
    app.steps["worker"].add(deployed_step(SeriesStep, redis_url=url, catalog=catalog))
    if catalog.pipelines:
        deployment = (settings, catalog, url, owner)
        app.steps["worker"].add(deployed_step(PipelinesStep, deployment=deployment))
    return app


def add_webhook_task(app: Celery, delivery: WebhookDeliverer) -> None:
    """Register the task that delivers a webhook."""

    @app.task(name=TASK, shared=False)
    def deliver(**arguments: Any) -> None:
        try:
            delivery.deliver(msgspec.convert(arguments["task"], WebhookTask))
        except BrokerError as error:
            delivery.outage.began(error.message)
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


class LivenessStep(StartStopStep):
    """Sends this worker's heartbeat, and requeues the tasks of dead workers.

    It belongs to Celery's consumer, which restarts when its connection was lost. Tasks that were
    taken over the old connection cannot be acknowledged any more, so they are requeued too.
    """

    requires = ("celery.worker.consumer.connection:Connection",)
    name = "headrace-liveness"
    redis_url: str
    owner: str
    _timer: Any = None

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._liveness = WorkerLiveness(node=consumer.hostname, pid=os.getpid())
        self._client = connect(self.redis_url)

    @override
    def start(self, parent: Any) -> None:
        try:
            self._report(self.owner)
        except RedisError as error:
            if isinstance(error, RedisConnectionError):
                raise
            # Celery starts its consumer again. Otherwise tasks would stay with the old connection.
            raise RedisConnectionError(f"Redis refuses a heartbeat: {error}") from error
        self._timer = parent.timer.call_repeatedly(HEARTBEAT_S, self._beat)

    @override
    def stop(self, parent: Any) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._client.close()

    def shutdown(self, parent: Any) -> None:
        """Stop for good; Celery calls it when its consumer ends."""
        self.stop(parent)

    def _beat(self) -> None:
        try:
            self._report()
        except (RedisError, OSError) as error:
            # Celery notices the outage by itself, and restarts its consumer.
            logger.warning("heartbeat failed: %s", error)

    def _report(self, *dead: str) -> None:
        requeued = recovery.report_alive(self._client, self.owner, self._liveness, *dead)
        if requeued:
            logger.warning("%d tasks of dead workers or lost connections requeued", requeued)


class WebhooksStep(StartStopStep):
    """Starts the thread that delivers webhooks. The thread ends with the process."""

    name = "headrace-webhooks"
    delivery: WebhookDeliverer

    @override
    def start(self, parent: Any) -> None:
        self.delivery.start()

    @override
    def stop(self, parent: Any) -> None:
        self.delivery.stop()

    @override
    def terminate(self, parent: Any) -> None:
        """Do nothing: an attempt that is cut off is made again."""


class PipelinesStep(ThreadStep):
    """Runs the pipelines, independently of Celery's own connection."""

    name = "headrace-pipelines"
    thread = (name, "the pipelines'")
    # If Redis is too slow, the jobs are released when their leases expire.
    stop_max_s = 10.0
    deployment: tuple[Settings, Catalog, str, str]

    @override
    def build(self, parent: Any) -> PipelineOrchestrator:
        return PipelineOrchestrator(*self.deployment, parent.hostname)


class SeriesStep(ThreadStep):
    """Writes the time series of the models."""

    name = "headrace-series"
    thread = (name, "the time series'")
    stop_max_s = 10.0
    redis_url: str
    catalog: Catalog

    @override
    def build(self, parent: Any) -> SeriesWriter:
        return SeriesWriter(self.redis_url, self.catalog)


@cache
def deployed() -> Celery:
    """Return the app of `deployment`; raises as that does."""
    settings, catalog = deployment(sources="optional")
    owner = os.environ.get("HEADRACE_INCARNATION") or f"background-{secrets.token_hex(6)}"
    transport.install()
    refuse(REFUSED)
    treat_as_lost_connections()
    drop_unreadable_messages()
    log_no_rejections()
    log_as("background", settings)
    return create_app(settings, catalog, owner)


__getattr__ = built_on_demand(__name__, deployed)
