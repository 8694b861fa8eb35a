"""The Celery app of a worker: its configuration, the consumer's step, and remote control.

The worker is Celery's own program. Celery's own consumer listens only to this deployment's control
queue.
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
from workers.celery.bootstep import ConsumerStep
from workers.celery.config import common_conf, deployed_step, log_as

#: No model can have this queue, as a model's name cannot contain a colon.
CONTROL_QUEUE: Final = "headrace:control"


def create_app(settings: Settings, catalog: Catalog) -> Celery:
    """Return the Celery app of a deployment's workers.

    Raises:
        ConfigError: `redis_url` is not set.
    """
    url = settings.redis_url
    if not url:
        raise ConfigError(
            "no Redis URL is set for the worker",
            hint="Set HEADRACE_REDIS_URL, or start everything with `headrace up`.",
        )
    target = celery_url(url)
    app = Celery("headrace", broker=target.url, backend=target.url, set_as_current=False)
    app.conf.update(
        **common_conf(target, CONTROL_QUEUE, {}),
        result_backend_transport_options=target.transport_options,
        task_default_queue=CONTROL_QUEUE,
        task_queues=[Queue(CONTROL_QUEUE)],
        # For Celery's own tasks on the control queue. Unset, Celery warns at each lost connection.
        worker_cancel_long_running_tasks_on_connection_loss=True,
        worker_concurrency=1,
        worker_pool="workers.celery.pool:TaskPool",
    )
    step = deployed_step(
        ConsumerStep,
        settings=settings,
        catalog=catalog,
        redis_url=url,
        control_queue=CONTROL_QUEUE,
    )
    app.steps["worker"].add(step)
    remote_control.install(url, CONTROL_QUEUE)
    broker_errors.treat_as_lost_connections()

    @app.task(name=TASK_NAME, shared=False)
    def predict(model: str, input: object) -> None:
        """Refuse a job on the control queue: the consumer runs jobs from their model's queue."""
        raise ValueError(f"send {TASK_NAME} to {queue_name(model)}, not to {CONTROL_QUEUE}")

    return app


@cache
def deployed() -> Celery:
    """Return the app of the deployment that the environment describes.

    Raises:
        ConfigError: a setting or the models file is invalid.
    """
    settings = load_settings(None, os.environ, {})
    log_as("worker", settings)
    return create_app(settings, load_catalog(settings.models_file, timeout_s=settings.timeout_s))
