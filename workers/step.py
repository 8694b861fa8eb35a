"""The step that puts the consumer into a stock Celery worker, and takes it out again.

It belongs to the worker's own blueprint, not to Celery's consumer: Celery restarts the latter whenever its
broker connection breaks, and the models must not be loaded again for that.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from celery import bootsteps

from headrace import keys
from headrace.catalog import Catalog, ModelConfig
from headrace.connections import connect
from headrace.settings import Settings
from workers.consumer import Consumer
from workers.device import device_of, model_environ
from workers.lane import Lane
from workers.ledger import Ledger, Limits
from workers.publisher import Publisher
from workers.replica import Replica
from workers.reporter import Reporter
from workers.wake import Wake

logger = logging.getLogger(__name__)


def build_lanes(catalog: Catalog, settings: Settings, environ: Mapping[str, str]) -> list[Lane]:
    """One lane per model of the catalogue, with its replicas not yet started."""
    models = list(catalog.models.values())
    child_environ = model_environ(environ, sum(model.replicas for model in models))
    lanes = []
    for model in models:
        init = _init_frame(model, catalog.base_dir, device_of(model, environ))
        replicas = [Replica(init, child_environ) for _ in range(model.replicas)]
        retries = model.max_retries if model.max_retries is not None else settings.max_retries
        lanes.append(Lane(model, retries, replicas))
    return lanes


def _init_frame(model: ModelConfig, folder: Path, device: str) -> dict[str, Any]:
    return {
        "model": model.name,
        "version": model.version,
        "handler": model.handler,
        "device": device,
        "model_dir": str(folder),
        "weights": str(folder / model.weights) if model.weights else "",
        "options": model.options,
        "max_batch_size": model.max_batch_size,
    }


def watched_keys(lanes: list[Lane]) -> list[tuple[str, str]]:
    """What wakes the worker: the same number of keys per lane, in the lanes' order."""
    watched = []
    for lane in lanes:
        watched += [(key, "LLEN") for key in keys.step_keys(lane.queue)]
    return watched


def event_channel(broker_url: str) -> str:
    """kombu's channel for lists of task events in the URL's database."""
    database = urlsplit(broker_url).path.strip("/")
    return f"/{database if database.isdigit() else '0'}.celeryev/task.multi"


def consumer_step(
    settings: Settings, catalog: Catalog, broker_url: str
) -> type[bootsteps.StartStopStep]:
    """The step class for this deployment; Celery wants a class and makes the instance itself."""

    class ConsumerStep(bootsteps.StartStopStep):
        """Runs the consumer's thread beside Celery's main loop."""

        requires = ("celery.worker.components:Pool",)
        name = "headrace"

        def __init__(self, worker: Any, **kwargs: Any) -> None:
            super().__init__(worker, **kwargs)
            self.consumer: Consumer | None = None
            self.thread: threading.Thread | None = None

        def start(self, worker: Any) -> None:
            lanes = build_lanes(catalog, settings, os.environ)
            owner = (
                os.environ.get("HEADRACE_INCARNATION")
                or f"{worker.hostname}-{secrets.token_hex(4)}"
            )
            client = connect(broker_url)
            limits = Limits(settings.lease_ttl_s, settings.max_deliveries, settings.drain_timeout_s)
            reporter = Reporter(
                owner,
                worker.hostname,
                event_channel(broker_url),
                worker.app.clock.forward,
                lambda: getattr(getattr(worker, "consumer", None), "event_dispatcher", None),
            )
            ledger = Ledger(owner, Publisher(client), limits)
            self.consumer = Consumer(lanes, ledger, Wake(client, watched_keys(lanes)), reporter)
            worker.headrace = self.consumer
            self.thread = threading.Thread(target=self._run, name="headrace-consumer", daemon=True)
            self.thread.start()

        def _run(self) -> None:
            try:
                self.consumer.run()  # type: ignore[union-attr]
            except BaseException:
                # A worker that heartbeats but consumes nothing is worse than none: end it, loudly, and
                # whoever supervises it starts another; its leases are given back.
                logger.critical("the consumer's thread ended by an error", exc_info=True)
                os._exit(70)

        def stop(self, worker: Any) -> None:
            if self.consumer is not None and self.thread is not None:
                self.consumer.stop()
                self.thread.join()

        def terminate(self, worker: Any) -> None:
            self.stop(worker)

        def info(self, worker: Any) -> dict[str, Any]:
            if self.consumer is None:
                return {}
            return {"headrace": {lane.model.name: lane.report() for lane in self.consumer.lanes}}

    return ConsumerStep
