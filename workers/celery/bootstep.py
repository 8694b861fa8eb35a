"""The step that puts the consumer into a stock Celery worker, and takes it out again.

It belongs to the worker's own blueprint, not to Celery's consumer: Celery restarts the latter
whenever its broker connection breaks, and the models must not be loaded again for that.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from celery import bootsteps
from typing_extensions import override

from headrace.config.model_catalog import Catalog, ModelConfig
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.observability.logs import batch_tag
from headrace.observability.tracing import tracing
from headrace.payloads.input_ref import InputRefs
from headrace.payloads.stores import THREADS, build_stores
from headrace.redis import keys
from headrace.redis.celery_url import celery_url
from headrace.redis.connection import SOCKET_TIMEOUT_S, connect
from workers.canvas.notifier import CanvasNotifier
from workers.canvas.sender import CanvasSender
from workers.celery import remote_control
from workers.celery.event_publisher import EventPublisher, model_report
from workers.celery.signal_wakeup import SignalWakeup
from workers.consumer.loop import Consumer
from workers.consumer.payload_transfer import PayloadTransfer
from workers.leases.connection import PipelinedConnection
from workers.leases.manager import LeaseLimits, LeaseManager
from workers.leases.notifications import QueueNotifications
from workers.models.pending_payloads import PendingPayloads
from workers.models.served_model import ServedModel
from workers.observability.gpu_metrics import GpuMetrics
from workers.observability.host_metrics import HostMetrics
from workers.replicas.devices import device_of, model_environ, tuned
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.replica import Replica
from workers.scheduling.dispatcher import Dispatcher
from workers.threads import run_critical


def build_models(
    catalog: Catalog, settings: Settings, environ: Mapping[str, str], owner: str = ""
) -> list[ServedModel]:
    """One `ServedModel` per model of the catalogue, with its replicas not yet started."""
    configs = list(catalog.models.values())
    processes = sum(config.replicas for config in configs)
    child_environ = model_environ(environ, min(settings.device_slots or processes, processes))
    told = [settings.log_format, settings.log_level, batch_tag(owner)]
    models = []
    for config in configs:
        device = device_of(config, environ)
        init = {**_init_frame(config, catalog.base_dir, device), "logs": told}
        own_environ = tuned(child_environ, device) if config.malloc_tuning else child_environ
        replicas = [
            Replica(init, own_environ, config.load_timeout_s) for _ in range(config.replicas)
        ]
        retries = config.max_retries if config.max_retries is not None else settings.max_retries
        payloads = PendingPayloads(settings.payload_store, settings.inline_limit_bytes)
        model = ServedModel(
            config, retries, replicas, pending_payloads=payloads, events_per_s=settings.events_per_s
        )
        models.append(model)
    return models


def _init_frame(model: ModelConfig, folder: Path, device: str) -> dict[str, Any]:
    return {
        "model": model.name,
        "version": model.version,
        "handler": model.handler,
        "device": device,
        "model_dir": str(folder),
        "weights": str(folder / model.weights) if model.weights else "",
        "options": model.options,
        "preprocess_threads": model.preprocess_threads,
        "preprocess_processes": model.preprocess_processes,
        "channels_last": _switch(model.channels_last),
        "max_batch_size": model.max_batch_size,
        "allowed_batch_sizes": model.allowed_batch_sizes or [],
    }


def _switch(value: bool | str) -> str:
    # YAML reads a bare `on` as true.
    return value if isinstance(value, str) else ("on" if value else "off")


def event_channel(database: int) -> str:
    """The channel that kombu uses for lists of task events in a database."""
    return f"/{database}.celeryev/task.multi"


def take_ticks(clock: Any, count: int) -> int:
    """Advance Celery's logical clock by `count` at once; the first of these ticks."""
    with clock.mutex:
        first: int = clock.value + 1
        clock.value += count
    return first


def build_consumer(worker: Any, settings: Settings, catalog: Catalog, redis_url: str) -> Consumer:
    """The consumer of one worker, with all that it works with, not yet running."""
    owner = os.environ.get("HEADRACE_INCARNATION") or f"{worker.hostname}-{secrets.token_hex(4)}"
    models = build_models(catalog, settings, os.environ, owner)
    # A try to connect is over in time for the next one to renew the leases.
    patience_s = min(SOCKET_TIMEOUT_S, max(1.0, settings.lease_ttl_s / 3))
    client = connect(redis_url, socket_timeout=patience_s, socket_connect_timeout=patience_s)
    host_metrics = HostMetrics(
        GpuMetrics(os.environ).read, partial(model_pids, models), settings.state_dir
    )
    event_publisher = EventPublisher(
        owner,
        worker.hostname,
        event_channel(celery_url(redis_url).database),
        partial(take_ticks, worker.app.clock),
        lambda: getattr(getattr(worker, "consumer", None), "event_dispatcher", None),
        host_metrics.latest,
    )
    spans = tracing("worker", os.environ)
    if spans is not None:
        from workers.observability.job_spans import JobSpans

        event_publisher.spans = JobSpans(spans)
    limits = LeaseLimits(
        settings.lease_ttl_s,
        settings.max_deliveries,
        settings.drain_timeout_s,
        settings.result_ttl_s,
        settings.job_index_max,
    )
    leases = LeaseManager(owner, PipelinedConnection(client), limits, event_publisher)
    # Before the guard, which is a process: a mistake of the settings is told first.
    transfer = _transfer(settings, redis_url)
    orphan_guard = OrphanGuard(f"{os.getpid()}:{secrets.token_hex(8)}")
    lists = [[name] for model in models for name in keys.step_keys(model.queue)]
    notifications = QueueNotifications(client, lists, keys.cancel_channel(owner))
    dispatcher = Dispatcher(models, settings.device_slots)
    notifier = CanvasNotifier(partial(CanvasSender, redis_url, settings.result_ttl_s))
    host_metrics.start()
    return Consumer(
        models, leases, notifications, event_publisher, orphan_guard, transfer, dispatcher, notifier
    )


def model_pids(models: Sequence[ServedModel]) -> dict[str, list[int]]:
    """The model processes of each model, and what belongs to them, as any thread may ask."""
    return {
        model.config.name: [
            pid
            for replica in list(model.replicas)
            if (process := replica.process) is not None
            for pid in (process.pid, *replica.helpers)
        ]
        for model in models
    }


def _transfer(settings: Settings, redis_url: str) -> PayloadTransfer:
    try:
        stores = build_stores(settings, redis_url)
        stores.check()
        return PayloadTransfer(stores, InputRefs(settings, THREADS))
    except ConfigError as error:
        raise SystemExit(f"headrace: {error.message} ({error.hint})") from None


class HeadraceStep(bootsteps.StartStopStep):
    """Runs the consumer's thread beside Celery's main loop.

    Args:
        worker: Celery's worker.
        build: makes the consumer of a worker.
        control_queue: the only queue that Celery's own consumer may have.
    """

    requires = ("celery.worker.components:Pool",)
    name = "headrace"

    def __init__(
        self, worker: Any, build: Callable[[Any], Consumer], control_queue: str, **kwargs: Any
    ) -> None:
        super().__init__(worker, **kwargs)
        others = sorted(set(worker.app.amqp.queues.consume_from) - {control_queue})
        if others:
            # Celery's consumer would pop a model's messages one by one, and run none of them.
            raise SystemExit(
                f"headrace: -Q {','.join(others)}: a Headrace worker takes no queues; "
                "it serves the models of its models file (HEADRACE_MODELS_FILE)"
            )
        self._build = build
        self._consumer: Consumer | None = None
        self._thread: threading.Thread | None = None
        self._prompt: SignalWakeup | None = None

    @override
    def start(self, parent: Any) -> None:
        consumer = self._build(parent)
        self._consumer = parent.headrace = consumer
        remote_control.count_active(consumer)
        self._thread = threading.Thread(
            target=run_critical,
            args=(consumer.run, "the consumer's"),
            name="headrace-consumer",
            daemon=True,
        )
        self._thread.start()
        self._prompt = SignalWakeup()
        self._prompt.listen()

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Called by Celery whenever its loop begins; what the hub knew before is forgotten."""
        if self._prompt is not None:
            self._prompt.wake(hub)

    @override
    def stop(self, parent: Any) -> None:
        if self._consumer is not None and self._thread is not None:
            self._consumer.stop()
            self._thread.join()
        if self._prompt is not None:
            self._prompt.close()
            self._prompt = None

    @override
    def terminate(self, parent: Any) -> None:
        self.stop(parent)

    @override
    def info(self, obj: Any) -> dict[str, Any]:  # type: ignore[override] # stubs say None
        if self._consumer is None:
            return {}
        return {
            "headrace": {
                model.config.name: {**model_report(model), **model.event_sampler.report()}
                for model in self._consumer.models
            }
        }


def consumer_step(
    settings: Settings, catalog: Catalog, redis_url: str, control_queue: str
) -> type[HeadraceStep]:
    """The step class for this deployment; Celery wants a class and makes the instance itself."""

    class DeployedStep(HeadraceStep):
        """The step with its deployment filled in."""

        name = "headrace"

        def __init__(self, worker: Any, **kwargs: Any) -> None:
            build = partial(build_consumer, settings=settings, catalog=catalog, redis_url=redis_url)
            super().__init__(worker, build, control_queue, **kwargs)

    return DeployedStep
