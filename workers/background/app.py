"""The background worker: `celery -A workers.background.app worker`, with a pool of threads.

It does what is neither a model's work nor a request's; beside its tasks it runs the pipelines,
in a thread (`workers/background/pipelines/orchestrator.py`), where the models file has any. Each
task may be done twice: a message is acknowledged when its task has ended, and goes back when its
worker is gone before (`workers/background/transport.py`).
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

import msgspec
from celery import Celery, bootsteps, states
from celery.backends.base import DisabledBackend
from celery.exceptions import Reject
from kombu import Queue
from redis.exceptions import RedisError
from typing_extensions import override

from headrace.config.model_catalog import Catalog, load_catalog
from headrace.config.settings import Settings, load_settings
from headrace.errors import BrokerError, ConfigError
from headrace.redis import keys
from headrace.redis.celery_url import celery_url
from headrace.redis.connection import SOCKET_TIMEOUT_S, connect
from headrace.server import background_workers
from headrace.webhooks import task_message as hook_errand
from workers.background import transport
from workers.background.pipelines.orchestrator import PipelineOrchestrator
from workers.background.webhooks.delivery import WebhookDelivery
from workers.celery.config import common_conf, log_as, refuse
from workers.threads import run_critical

logger = logging.getLogger(__name__)

#: How many errands are done at a time; most of them wait for others.
THREADS: Final = 16
_THREADS: Final = f"a background worker has {THREADS} threads, for good: run another one beside it"
#: What its pool cannot do, with what to do instead.
REFUSED: Final = {
    "pool_grow": _THREADS,
    "pool_shrink": _THREADS,
    "autoscale": _THREADS,
    "pool_restart": "the pool of a background worker cannot restart: restart the worker, which "
    "runs its unfinished tasks again",
}
#: How often it says that it lives, in seconds.
ALIVE_S: Final = 3.0
#: How long a stop waits until what is under way was given back.
STOP_MAX_S: Final = 10.0


def create_app(settings: Settings, catalog: Catalog, owner: str) -> Celery:
    """The Celery app of a deployment's errands.

    Args:
        settings: for the Redis.
        catalog: the models and pipelines.
        owner: this worker's name in its account, another at each start.

    Raises:
        ConfigError: no Redis is named.
    """
    url = settings.redis_url
    if not url:
        raise ConfigError(
            "no Redis is named for the background worker",
            hint="Set HEADRACE_REDIS_URL, or start everything with `headrace up`.",
        )
    target = celery_url(url)
    app = Celery("headrace-errands", broker=target.url, backend=NoResults, set_as_current=False)
    app.conf.update(
        **common_conf(target, keys.ERRANDS, {"owner": owner, "priority_steps": [0]}),
        task_acks_late=True,
        task_default_queue=keys.ERRANDS,
        task_ignore_result=True,
        task_queues=[Queue(keys.ERRANDS)],
        task_reject_on_worker_lost=True,
        # Threads cannot be cancelled; what they acknowledge in vain is done again.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_concurrency=THREADS,
        worker_pool="threads",
        worker_prefetch_multiplier=1,
    )
    app.steps["consumer"].add(account_step(url, owner))
    app.steps["worker"].add(courier_step(app, WebhookDelivery(settings, url)))
    if catalog.pipelines:
        app.steps["worker"].add(conductor_step(settings, catalog, url, owner))
    return app


class NoResults(DisabledBackend):
    """Keeps no results, and says so of each, where Celery's own of this kind raises.

    Who revokes a model's job is heard by this worker, too, and Celery asks for its result then.
    """

    @override
    def get_state(self, task_id: str) -> str:
        """Of no task anything is known."""
        return states.PENDING


class OrchestratorStep(bootsteps.StartStopStep):
    """Runs the pipelines beside Celery's main loop, whatever becomes of Celery's own connection.

    Args:
        worker: Celery's worker.
        build: makes the conductor, for a node.
    """

    requires = ("celery.worker.components:Pool",)
    name = "headrace-pipelines"

    def __init__(
        self, worker: Any, build: Callable[[str], PipelineOrchestrator], **kwargs: Any
    ) -> None:
        super().__init__(worker, **kwargs)
        self._build = build
        self._conductor: PipelineOrchestrator | None = None
        self._thread: threading.Thread | None = None

    @override
    def start(self, parent: Any) -> None:
        conductor = self._conductor = self._build(parent.hostname)
        self._thread = threading.Thread(
            target=run_critical,
            args=(conductor.run, "the pipelines'"),
            name="headrace-pipelines",
            daemon=True,
        )
        self._thread.start()

    @override
    def stop(self, parent: Any) -> None:
        if self._conductor is not None and self._thread is not None:
            self._conductor.stop()
            # Redis may keep it waiting; what it holds goes back once this process is gone.
            self._thread.join(STOP_MAX_S)

    @override
    def terminate(self, parent: Any) -> None:
        self.stop(parent)


def conductor_step(
    settings: Settings, catalog: Catalog, url: str, owner: str
) -> type[OrchestratorStep]:
    """The step's class for this deployment; Celery wants a class and makes the instance itself."""

    class DeployedStep(OrchestratorStep):
        """The step with its deployment filled in."""

        name = "headrace-pipelines"

        def __init__(self, worker: Any, **kwargs: Any) -> None:
            build = partial(PipelineOrchestrator, settings, catalog, url, owner)
            super().__init__(worker, build, **kwargs)

    return DeployedStep


def courier_step(app: Celery, courier: WebhookDelivery) -> type[bootsteps.StartStopStep]:
    """The task that delivers webhooks, and the step that lets it begin.

    It ends with the process: what is under way when that is asked to stop may still end.
    """

    @app.task(name=hook_errand.TASK, shared=False)
    def deliver(errand: dict[str, Any]) -> None:
        try:
            courier.deliver(msgspec.convert(errand, hook_errand.WebhookTask))
        except BrokerError as error:
            logger.warning("a webhook waits for Redis", extra={"reason": error.message})
            # It is put back, and so done again once Redis takes it.
            raise Reject(str(error), requeue=True) from error

    class CourierStep(bootsteps.StartStopStep):
        """Starts the thread that sends, and that looks for what is due."""

        name = "headrace-webhooks"

        @override
        def start(self, parent: Any) -> None:
            courier.start()

    return CourierStep


class LivenessStep(bootsteps.StartStopStep):
    """Says that this worker lives, and gives back what the dead have held.

    It is of Celery's consumer, which begins anew whenever its connection was lost: then nothing
    that was taken over the old one can be acknowledged any more, and all of that goes back too.

    Args:
        consumer: Celery's consumer.
        url: the deployment's Redis.
        owner: this worker.
    """

    requires = ("celery.worker.consumer.connection:Connection",)
    name = "headrace-account"

    def __init__(self, consumer: Any, url: str, owner: str, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._owner = owner
        self._alive = background_workers.WorkerLiveness(node=consumer.hostname, pid=os.getpid())
        self._client = connect(
            url, socket_timeout=SOCKET_TIMEOUT_S, socket_connect_timeout=SOCKET_TIMEOUT_S
        )
        self._timer: Any = None

    @override
    def start(self, parent: Any) -> None:
        self._tell(self._owner)
        self._timer = parent.timer.call_repeatedly(ALIVE_S, self._tell)

    @override
    def stop(self, parent: Any) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._client.close()

    def shutdown(self, parent: Any) -> None:
        """Celery's word for the end of its consumer for good."""
        self.stop(parent)

    def _tell(self, *gone: str) -> None:
        try:
            back = background_workers.tell(self._client, self._owner, self._alive, *gone)
        except (RedisError, OSError) as error:
            # Celery notices by itself, and begins anew.
            logger.warning("Redis does not hear that this worker lives: %s", error)
            return
        if back:
            logger.warning("%d errands of workers or connections that are gone go back", back)


def account_step(url: str, owner: str) -> type[LivenessStep]:
    """The step's class for this deployment; Celery wants a class and makes the instance itself."""

    class DeployedStep(LivenessStep):
        """The step with its deployment filled in."""

        name = "headrace-account"

        def __init__(self, consumer: Any, **kwargs: Any) -> None:
            super().__init__(consumer, url, owner, **kwargs)

    return DeployedStep


@cache
def deployed() -> Celery:
    """The app of the deployment that the environment describes.

    Raises:
        ConfigError: a setting or the models file is wrong.
    """
    settings = load_settings(None, os.environ, {})
    owner = os.environ.get("HEADRACE_INCARNATION") or f"errands-{secrets.token_hex(6)}"
    transport.install()
    refuse(REFUSED)
    log_as("errands", settings)
    catalog = load_catalog(settings.models_file, timeout_s=settings.timeout_s)
    return create_app(settings, catalog, owner)


def __getattr__(name: str) -> Celery:
    """`celery -A workers.background.app` looks for `app`; until then this module does nothing."""
    if name == "app":
        return deployed()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
