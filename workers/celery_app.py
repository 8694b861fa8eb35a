"""The only Celery configuration: `celery -A workers.celery_app worker`, and Flower on the same app.

The worker is Celery's own program. Ours are one step (the consumer), the pool, and one answer of
remote control. Celery's own consumer listens on a control queue of this deployment alone.
"""

from __future__ import annotations

import os
from typing import Final

from celery import Celery
from kombu import Queue

from headrace.catalog import Catalog, load_catalog
from headrace.errors import ConfigError
from headrace.keys import TASK_NAME
from headrace.settings import Settings, load_settings
from workers import control
from workers.step import consumer_step

CONTROL_QUEUE: Final = "headrace.control"


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
    app = Celery("headrace", broker=url, backend=url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        # kombu's own record of unacknowledged messages, apart from other applications': every client
        # of a database applies its visibility timeout to all that stands under the common names.
        broker_transport_options={
            "unacked_key": "headrace.control.unacked",
            "unacked_index_key": "headrace.control.unacked_index",
            "unacked_mutex_key": "headrace.control.unacked_mutex",
        },
        enable_utc=True,
        result_serializer="json",
        task_default_queue=CONTROL_QUEUE,
        task_queues=[Queue(CONTROL_QUEUE)],
        task_serializer="json",
        worker_concurrency=1,
        worker_hijack_root_logger=True,
        worker_pool="workers.pool:TaskPool",
        worker_send_task_events=True,
        worker_enable_remote_control=True,
    )
    app.steps["worker"].add(consumer_step(settings, catalog, url))
    control.install()

    @app.task(name=TASK_NAME, bind=False)
    def predict(model: str, input: object) -> None:  # noqa: A002 - the wire's own words
        """Run by the consumer, in batches, from the queue of its model."""
        raise ValueError(f"send {TASK_NAME} to the queue headrace.{model}, not to {CONTROL_QUEUE}")

    return app


def _deployed() -> Celery:
    settings = load_settings(None, os.environ, {})
    return create_app(settings, load_catalog(settings.models_file))


app: Final = _deployed()
