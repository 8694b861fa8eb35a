"""The Celery app of a worker: its configuration, the consumer's step, and remote control.

The worker is Celery's own program. Celery's own consumer listens only to this deployment's control
queue. The step that runs our consumer belongs to the worker's blueprint, not to Celery's consumer.
Celery restarts its consumer when the broker connection breaks, and the models must not be loaded
again then.
"""

from __future__ import annotations

import signal
import threading
from functools import cache
from typing import Any, Final

from celery import Celery
from kombu import Queue
from typing_extensions import override

from headrace.config.model.catalog import Catalog
from headrace.config.settings import Settings
from headrace.redis.keys import TASK_NAME, queue_name
from headrace.redis.url import celery_url
from headrace.signals import SignalSocket
from workers.celery import remote_control
from workers.celery.build import build_consumer
from workers.celery.celery_internals import drop_unreadable_messages, treat_as_lost_connections
from workers.celery.config import (
    ThreadStep,
    common_conf,
    deployed_step,
    deployment,
    log_as,
)
from workers.consumer.loop import Consumer
from workers.observability.worker_report import model_report

#: No model can have this queue, as a model's name cannot contain a colon.
CONTROL_QUEUE: Final = "headrace:control"


def create_app(settings: Settings, catalog: Catalog) -> Celery:
    """Return the Celery app of a deployment's workers; raise ConfigError without `redis_url`."""
    url = settings.needed_redis_url("a worker")
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
        worker_pool="threads",
    )
    step = deployed_step(
        ConsumerStep, deployment=(settings, catalog, url), control_queue=CONTROL_QUEUE
    )
    app.steps["worker"].add(step)
    remote_control.install(url, CONTROL_QUEUE)
    treat_as_lost_connections()
    drop_unreadable_messages()

    @app.task(name=TASK_NAME, shared=False)
    def predict(model: str, input: object) -> None:
        """Refuse a job on the control queue: the consumer runs jobs from their model's queue."""
        raise ValueError(f"send {TASK_NAME} to {queue_name(model)}, not to {CONTROL_QUEUE}")

    return app


@cache
def deployed() -> Celery:
    """Return the app of `deployment`; raises as that does."""
    settings, catalog = deployment()
    log_as("worker", settings)
    return create_app(settings, catalog)


class ConsumerStep(ThreadStep):
    """Runs the consumer; Celery's own consumer may have only the control queue."""

    name = "headrace"
    thread = ("headrace-consumer", "the consumer's")
    deployment: tuple[Settings, Catalog, str]
    control_queue: str
    _consumer: Consumer | None = None
    _wakeup: SignalWakeup | None = None

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        others = sorted(set(worker.app.amqp.queues.consume_from) - {self.control_queue})
        if others:
            # Celery's consumer would pop a model's messages, and run none of them.
            raise SystemExit(
                f"headrace: -Q {','.join(others)}: a Headrace worker takes no queues; "
                "it serves the models of its models file (HEADRACE_MODELS_FILE)"
            )

    @override
    def build(self, parent: Any) -> Consumer:
        consumer = self._consumer = parent.headrace = build_consumer(parent, *self.deployment)
        remote_control.count_active(consumer)
        return consumer

    @override
    def start(self, parent: Any) -> None:
        super().start(parent)
        self._wakeup = SignalWakeup()
        self._wakeup.listen()

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Register the wakeup socket again, as Celery's loop forgets it whenever it restarts."""
        if self._wakeup is not None:
            self._wakeup.register(hub)

    @override
    def stop(self, parent: Any) -> None:
        super().stop(parent)
        if self._wakeup is not None:
            self._wakeup.close()
            self._wakeup = None

    @override
    def info(self, obj: Any) -> dict[str, Any]:  # type: ignore[override] # the stubs return None
        consumer = self._consumer
        if consumer is None:
            return {}
        return {
            "headrace": {
                model.config.name: {**model_report(model), **consumer.observer.report(model)}
                for model in consumer.models
            }
        }


class SignalWakeup(SignalSocket):
    """Wakes Celery's loop at once after any signal.

    Python runs a signal's handler and then continues the poll that it interrupted. Without this,
    Celery would notice a request to stop only when its next timer is due, up to a second later.
    """

    _listens = False

    def listen(self) -> None:
        """Make it readable at each signal. Does nothing outside of the main thread."""
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._listens = True

    def register(self, hub: Any) -> None:
        """Add it to the polls of Celery's loop."""
        hub.add_reader(self.fileno(), self.clear)

    @override
    def close(self) -> None:
        """Stop listening, after the loop has ended."""
        if self._listens:
            signal.set_wakeup_fd(-1)
        super().close()
