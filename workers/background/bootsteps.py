"""The bootsteps of the background worker: its liveness, its webhooks and its pipelines."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Final

from celery import bootsteps
from redis.exceptions import RedisError
from typing_extensions import override

from headrace.config.model_catalog import Catalog
from headrace.config.settings import Settings
from headrace.redis.connection import SOCKET_TIMEOUT_S, connect
from headrace.server import background_workers
from workers.background.pipelines.orchestrator import PipelineOrchestrator
from workers.background.webhooks.delivery import WebhookDeliverer
from workers.threads import run_critical

logger = logging.getLogger(__name__)

#: Seconds between two heartbeats.
HEARTBEAT_S: Final = 3.0
#: How long a stop waits until the running pipeline jobs are released, in seconds.
STOP_MAX_S: Final = 10.0


class LivenessStep(bootsteps.StartStopStep):
    """Sends this worker's heartbeat, and requeues the tasks of dead workers.

    It belongs to Celery's consumer, which restarts when its connection was lost. Tasks that were
    taken over the old connection cannot be acknowledged any more, so they are requeued too.

    Args:
        consumer: Celery's consumer.
        redis_url: the deployment's Redis.
        owner: this incarnation of the worker.
    """

    requires = ("celery.worker.consumer.connection:Connection",)
    name = "headrace-liveness"

    def __init__(self, consumer: Any, *, redis_url: str, owner: str, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._owner = owner
        self._liveness = background_workers.WorkerLiveness(node=consumer.hostname, pid=os.getpid())
        self._client = connect(
            redis_url, socket_timeout=SOCKET_TIMEOUT_S, socket_connect_timeout=SOCKET_TIMEOUT_S
        )
        self._timer: Any = None

    @override
    def start(self, parent: Any) -> None:
        self._beat(self._owner)
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

    def _beat(self, *dead: str) -> None:
        try:
            requeued = background_workers.report_alive(
                self._client, self._owner, self._liveness, *dead
            )
        except (RedisError, OSError) as error:
            # Celery notices the outage by itself, and restarts its consumer.
            logger.warning("heartbeat failed: %s", error)
            return
        if requeued:
            logger.warning("%d tasks of dead workers or lost connections requeued", requeued)


class WebhooksStep(bootsteps.StartStopStep):
    """Starts the thread that delivers webhooks. The thread ends with the process.

    Args:
        worker: Celery's worker.
        delivery: delivers the webhooks.
    """

    name = "headrace-webhooks"

    def __init__(self, worker: Any, *, delivery: WebhookDeliverer, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._delivery = delivery

    @override
    def start(self, parent: Any) -> None:
        self._delivery.start()


class PipelinesStep(bootsteps.StartStopStep):
    """Runs the pipelines in a thread, independently of Celery's own connection.

    Args:
        worker: Celery's worker.
        settings: the deployment's settings.
        catalog: its models and pipelines.
        redis_url: its Redis.
        owner: this incarnation of the worker.
    """

    requires = ("celery.worker.components:Pool",)
    name = "headrace-pipelines"

    def __init__(
        self,
        worker: Any,
        *,
        settings: Settings,
        catalog: Catalog,
        redis_url: str,
        owner: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(worker, **kwargs)
        self._deployment = (settings, catalog, redis_url, owner)
        self._orchestrator: PipelineOrchestrator | None = None
        self._thread: threading.Thread | None = None

    @override
    def start(self, parent: Any) -> None:
        orchestrator = PipelineOrchestrator(*self._deployment, parent.hostname)
        self._orchestrator = orchestrator
        self._thread = threading.Thread(
            target=run_critical,
            args=(orchestrator.run, "the pipelines'"),
            name="headrace-pipelines",
            daemon=True,
        )
        self._thread.start()

    @override
    def stop(self, parent: Any) -> None:
        if self._orchestrator is not None and self._thread is not None:
            self._orchestrator.stop()
            # If Redis is too slow, the jobs are released when their leases expire.
            self._thread.join(STOP_MAX_S)

    @override
    def terminate(self, parent: Any) -> None:
        self.stop(parent)
