"""Builds the consumer of a worker, with everything that it works with."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
from workers.celery.celery_internals import event_channel, take_ticks
from workers.celery.event_publisher import EventPublisher
from workers.consumer.loop import Consumer
from workers.consumer.payload_transfer import PayloadTransfer
from workers.leases.connection import PipelinedConnection
from workers.leases.manager import LeaseLimits, LeaseManager
from workers.leases.notifications import QueueNotifications
from workers.models.pending_payloads import PendingPayloads
from workers.models.served_model import ServedModel
from workers.observability.gpu_metrics import GpuMetrics
from workers.observability.host_metrics import HostMetrics
from workers.observability.worker_report import WorkerReporter
from workers.protocol.environment import PARENT_VARIABLE
from workers.replicas.devices import device_of, model_environ, tuned
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.replica import Replica
from workers.scheduling.dispatcher import Dispatcher


def build_consumer(worker: Any, settings: Settings, catalog: Catalog, redis_url: str) -> Consumer:
    """Return the consumer of a worker, not yet running.

    Args:
        worker: Celery's worker.
        settings: the deployment's settings.
        catalog: the models to serve.
        redis_url: the deployment's Redis.

    Raises:
        SystemExit: the payload stores are misconfigured.
    """
    owner = os.environ.get("HEADRACE_INCARNATION") or f"{worker.hostname}-{secrets.token_hex(4)}"
    models = build_models(catalog, settings, os.environ, owner)
    # Connecting fails early enough for another attempt to renew the leases in time.
    timeout_s = min(SOCKET_TIMEOUT_S, max(1.0, settings.lease_ttl_s / 3))
    client = connect(redis_url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
    host_metrics = HostMetrics(
        GpuMetrics(os.environ).read, partial(model_pids, models), settings.state_dir
    )
    event_publisher = EventPublisher(
        worker.hostname,
        event_channel(celery_url(redis_url).database),
        partial(take_ticks, worker.app.clock),
        lambda: getattr(getattr(worker, "consumer", None), "event_dispatcher", None),
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
    transfer = _transfer(settings, redis_url)
    orphan_guard = OrphanGuard(PARENT_VARIABLE, f"{os.getpid()}:{secrets.token_hex(8)}")
    lists = [[name] for model in models for name in keys.step_keys(model.queue)]
    notifications = QueueNotifications(client, lists, keys.cancel_channel(owner))
    dispatcher = Dispatcher(models, settings.device_slots)
    notifier = CanvasNotifier(partial(CanvasSender, redis_url, settings.result_ttl_s))
    host_metrics.start()
    report = WorkerReporter(owner, worker.hostname, host_metrics.latest)
    return Consumer(
        models,
        leases,
        notifications,
        event_publisher,
        report,
        orphan_guard,
        transfer,
        dispatcher,
        notifier,
    )


def model_pids(models: Sequence[ServedModel]) -> dict[str, list[int]]:
    """Return the pids of each model's processes and their helpers; any thread may call it."""
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


def build_models(
    catalog: Catalog, settings: Settings, environ: Mapping[str, str], owner: str = ""
) -> list[ServedModel]:
    """Return one `ServedModel` per model of the catalogue; its replicas are not started yet."""
    configs = list(catalog.models.values())
    processes = sum(config.replicas for config in configs)
    child_environ = model_environ(environ, min(settings.device_slots or processes, processes))
    logs = [settings.log_format, settings.log_level, batch_tag(owner)]
    models = []
    for config in configs:
        device = device_of(config, environ)
        init = {**_init_frame(config, catalog.base_dir, device), "logs": logs}
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
