"""The only Celery configuration: `celery -A workers.celery_app worker`, and Flower on the same app.

The worker is Celery's own program. Ours are one step (the consumer), the pool, and one answer of
remote control. Celery's own consumer listens on a control queue of this deployment alone.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Final

from celery import Celery
from kombu import Queue

from headrace.config.model_catalog import Catalog, load_catalog
from headrace.config.settings import Settings, load_settings
from headrace.errors import ConfigError
from headrace.redis.celery_url import celery_url
from headrace.redis.keys import TASK_NAME, queue_name
from workers.celery import broker_errors, remote_control
from workers.celery.bootstep import consumer_step
from workers.celery.config import common_conf, log_as

#: No model can have this queue: a colon stands in no model's name.
CONTROL_QUEUE: Final = "headrace:control"


def create_app(settings: Settings, catalog: Catalog) -> Celery:
    """The Celery app of a deployment.

    Raises:
        ConfigError: no Redis is named.
    """
    url = settings.redis_url
    if not url:
        raise ConfigError(
            "no Redis is named for the worker",
            hint="Set HEADRACE_REDIS_URL, or start everything with `headrace up`.",
        )
    target = celery_url(url)
    app = Celery("headrace", broker=target.url, backend=target.url, set_as_current=False)
    app.conf.update(
        **common_conf(target, CONTROL_QUEUE, {}),
        result_backend_transport_options=target.transport_options,
        task_default_queue=CONTROL_QUEUE,
        task_queues=[Queue(CONTROL_QUEUE)],
        # This concerns Celery's own tasks on the control queue; unset, it warns at each lost
        # connection.
        worker_cancel_long_running_tasks_on_connection_loss=True,
        worker_concurrency=1,
        worker_pool="workers.celery.pool:TaskPool",
    )
    app.steps["worker"].add(consumer_step(settings, catalog, url, CONTROL_QUEUE))
    remote_control.install(url, CONTROL_QUEUE)
    broker_errors.pass_by()

    @app.task(name=TASK_NAME, shared=False)
    def predict(model: str, input: object) -> None:
        """Run by the consumer, in batches, from the queue of its model."""
        raise ValueError(f"send {TASK_NAME} to {queue_name(model)}, not to {CONTROL_QUEUE}")

    return app


@cache
def deployed() -> Celery:
    """The app of the deployment that the environment describes.

    Raises:
        ConfigError: a setting or the models file is wrong.
    """
    settings = load_settings(None, os.environ, {})
    log_as("worker", settings)
    return create_app(settings, load_catalog(settings.models_file, timeout_s=settings.timeout_s))


def __getattr__(name: str) -> Celery:
    """`celery -A workers.celery_app` looks for `app`; until then this module does nothing."""
    if name == "app":
        return deployed()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
