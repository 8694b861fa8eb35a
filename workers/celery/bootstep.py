"""The bootstep that runs the consumer in a stock Celery worker.

It belongs to the worker's blueprint, not to Celery's consumer. Celery restarts its consumer when
the broker connection breaks, and the models must not be loaded again for that.
"""

from __future__ import annotations

import threading
from typing import Any

from celery import bootsteps
from typing_extensions import override

from headrace.config.model_catalog import Catalog
from headrace.config.settings import Settings
from workers.celery import remote_control
from workers.celery.build import build_consumer
from workers.celery.signal_wakeup import SignalWakeup
from workers.consumer.loop import Consumer
from workers.observability.worker_report import model_report
from workers.threads import run_critical


class ConsumerStep(bootsteps.StartStopStep):
    """Runs the consumer in a thread, next to Celery's main loop.

    Args:
        worker: Celery's worker.
        settings: the deployment's settings.
        catalog: the models to serve.
        redis_url: the deployment's Redis.
        control_queue: the only queue that Celery's own consumer may have.
    """

    requires = ("celery.worker.components:Pool",)
    name = "headrace"

    def __init__(
        self,
        worker: Any,
        *,
        settings: Settings,
        catalog: Catalog,
        redis_url: str,
        control_queue: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(worker, **kwargs)
        others = sorted(set(worker.app.amqp.queues.consume_from) - {control_queue})
        if others:
            # Celery's consumer would pop a model's messages one by one, and run none of them.
            raise SystemExit(
                f"headrace: -Q {','.join(others)}: a Headrace worker takes no queues; "
                "it serves the models of its models file (HEADRACE_MODELS_FILE)"
            )
        self._deployment = (settings, catalog, redis_url)
        self._consumer: Consumer | None = None
        self._thread: threading.Thread | None = None
        self._wakeup: SignalWakeup | None = None

    @override
    def start(self, parent: Any) -> None:
        consumer = self._consumer = parent.headrace = build_consumer(parent, *self._deployment)
        remote_control.count_active(consumer)
        self._thread = threading.Thread(
            target=run_critical,
            args=(consumer.run, "the consumer's"),
            name="headrace-consumer",
            daemon=True,
        )
        self._thread.start()
        self._wakeup = SignalWakeup()
        self._wakeup.listen()

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Register the wakeup socket again, as Celery's loop forgets it whenever it restarts."""
        if self._wakeup is not None:
            self._wakeup.register(hub)

    @override
    def stop(self, parent: Any) -> None:
        if self._consumer is not None and self._thread is not None:
            self._consumer.stop()
            self._thread.join()
        if self._wakeup is not None:
            self._wakeup.close()
            self._wakeup = None

    @override
    def terminate(self, parent: Any) -> None:
        self.stop(parent)

    @override
    def info(self, obj: Any) -> dict[str, Any]:  # type: ignore[override] # the stubs return None
        if self._consumer is None:
            return {}
        return {
            "headrace": {
                model.config.name: {**model_report(model), **model.event_sampler.report()}
                for model in self._consumer.models
            }
        }
