"""Builds the consumer of a worker, with everything that it works with."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis

from headrace.config.model.catalog import Catalog, ModelConfig
from headrace.config.model.optimize import OPTIMIZED
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.models.catalog import ENVIRONMENTS
from headrace.models.requirements import prune
from headrace.observability.tracing import tracing
from headrace.observability.worker_report import DeviceFigures, ModelStats
from headrace.payloads.input_ref import InputRefs
from headrace.payloads.stores import THREADS, build_stores
from headrace.redis import keys
from headrace.redis.connection import SOCKET_TIMEOUT_S, connect
from headrace.redis.url import celery_url
from headrace.registry.catalog import RegisteredConfig
from workers.canvas.notifier import CanvasNotifier
from workers.canvas.sender import CanvasSender
from workers.celery.celery_internals import event_channel, event_dispatcher, take_ticks
from workers.celery.task_events import EventPublisher
from workers.consumer.loop import Consumer
from workers.consumer.payload_transfer import PayloadTransfer
from workers.consumer.profiles import Profiles
from workers.extension import observers_of
from workers.leases.connection import PipelinedConnection
from workers.leases.manager import LeaseManager
from workers.leases.notifications import QueueNotifications
from workers.lifecycle.registry_reader import RegisteredModels, RegistryReader
from workers.models.held import PendingPayloads
from workers.models.served_model import ServedModel
from workers.observability.host_metrics import GpuMetrics, HostMetrics
from workers.observability.worker_report import WorkerReporter
from workers.protocol.frames import PARENT_VARIABLE, batch_tag
from workers.replicas.devices import device_of, tuned
from workers.replicas.orphan_guard import OrphanGuard
from workers.replicas.placement import Placement
from workers.replicas.replica import Replica
from workers.scheduling.dispatcher import Dispatcher

logger = logging.getLogger(__name__)


@contextmanager
def _exits_on_mistakes() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise SystemExit(f"headrace: {error.message_with_hint}") from None


@_exits_on_mistakes()
def build_consumer(worker: Any, settings: Settings, catalog: Catalog, redis_url: str) -> Consumer:
    """Return a worker's consumer, not yet running; raise SystemExit for a wrong configuration."""
    owner = os.environ.get("HEADRACE_INCARNATION") or f"{worker.hostname}-{secrets.token_hex(4)}"
    gpus = GpuMetrics(os.environ)
    builder = ModelBuilder(catalog, settings, os.environ, owner, gpus.read())
    placement = builder.placement
    registry = RegistryReader(redis_url, settings, catalog)
    registered = registry.read_at_start()
    _prune_environments(settings, registered)
    if registered is None:
        registered = [
            (config.name, config.version, RegisteredConfig(config, 0, True, ""))
            for config in catalog.models.values()
        ]
    # The consumer adds those that are registered.
    models: list[ServedModel] = []
    host_metrics = HostMetrics(
        gpus.read, partial(model_pids, models), settings.state_dir, gpus.processes
    )
    placement.figures = host_metrics.newest
    client = _connection(settings, redis_url)
    observer = _event_publisher(worker, settings, redis_url)
    observers = observers_of(settings, host_metrics.newest)
    scripts = [script for added in observers for script in added.scripts]
    host_metrics.start()
    return Consumer(
        models=models,
        leases=LeaseManager(owner, PipelinedConnection(client, scripts), settings, observer),
        notifications=QueueNotifications(client, [], keys.cancel_channel(owner)),
        observer=observer,
        report=WorkerReporter(
            owner, worker.hostname, host_metrics.latest, settings.worker_labels, placement.capacity
        ),
        orphan_guard=OrphanGuard(PARENT_VARIABLE, f"{os.getpid()}:{secrets.token_hex(8)}"),
        transfer=_transfer(settings, redis_url),
        dispatcher=Dispatcher(models, settings.device_slots),
        notifier=CanvasNotifier(partial(CanvasSender, redis_url, settings.result_ttl_s)),
        build=builder.build,
        placement=placement,
        registry=registry,
        profiles=Profiles(redis_url, owner),
        registered=registered,
        observers=observers,
    )


def _connection(settings: Settings, redis_url: str) -> Redis:
    # Connecting fails early enough for another attempt to renew the leases in time.
    timeout_s = min(SOCKET_TIMEOUT_S, max(1.0, settings.lease_ttl_s / 3))
    return connect(redis_url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)


def _event_publisher(worker: Any, settings: Settings, redis_url: str) -> EventPublisher:
    """Return the observer of the worker, which also makes spans if tracing is on."""
    publisher = EventPublisher(
        worker.hostname,
        event_channel(celery_url(redis_url).database),
        partial(take_ticks, worker.app.clock),
        partial(event_dispatcher, worker),
        settings.events_per_s,
    )
    spans = tracing("worker", os.environ)
    if spans is not None:
        from workers.observability.job_spans import JobSpans

        publisher.spans = JobSpans(spans)
    return publisher


def _prune_environments(settings: Settings, registered: RegisteredModels | None) -> None:
    """Remove the environments of models that are gone; none if a registered model is not known."""
    if registered is None or not settings.install_requirements:
        return
    files = []
    for _, _, version in registered:
        if version.config is None:
            return
        if version.config.requirements is not None:
            files.append(Path(version.config.requirements.file))
    for name in prune(settings.state_dir.absolute() / ENVIRONMENTS, files):
        logger.info("removed the environment %s, which no model has used for a week", name)


def model_pids(models: Sequence[ServedModel]) -> dict[str, list[int]]:
    """Return the pids of each model's processes and their helpers; any thread may call it."""
    pids: dict[str, list[int]] = {}
    for model in models:  # several versions of a model have the same name
        of_model = pids.setdefault(model.config.name, [])
        for replica in list(model.replicas):
            of_model += replica.pids
    return pids


def _transfer(settings: Settings, redis_url: str) -> PayloadTransfer:
    stores = build_stores(settings, redis_url, s3_tries=1)
    stores.check()
    return PayloadTransfer(stores, InputRefs(settings, THREADS, s3_tries=1))


class ModelBuilder:
    """Builds the served models of a worker; their replicas are not started yet."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        environ: Mapping[str, str],
        owner: str = "",
        devices: Sequence[DeviceFigures] = (),
    ) -> None:
        self.placement = Placement(catalog.models.values(), settings, environ, devices)
        self._environ = environ
        self._settings = settings
        self._folder = catalog.base_dir
        self._logs = [settings.log_format, settings.log_level, batch_tag(owner)]

    def build(self, config: ModelConfig, key: str, stats: ModelStats | None) -> ServedModel:
        """Return a model with this key in the worker, which continues these counters."""
        settings, placement, environ = self._settings, self.placement, self.placement.environ
        config = placement.resolve(config)
        device = device_of(config, self._environ)
        init = {
            **config.init_frame(self._folder, device),
            "logs": self._logs,
            "optimize_cache": str(settings.state_dir.absolute() / OPTIMIZED),
        }
        environ = tuned(environ, device) if config.malloc_tuning else environ
        template = Replica(init, environ, config.load_timeout_s, placement.core_sets)
        replicas = [template.another() for _ in range(config.replicas)]
        retries = config.max_retries if config.max_retries is not None else settings.max_retries
        payloads = PendingPayloads(settings.payload_store, settings.inline_limit_bytes)
        return ServedModel(
            config, retries, replicas, payloads, key=key, stats=stats, template=template
        )
