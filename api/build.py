"""Builds the services of one API process from its settings and its models file."""

from __future__ import annotations

import asyncio
import os
from functools import partial

import redis.asyncio

from api.auth.authenticator import Authenticator
from api.components.expiry_task import ExpiryTask
from api.components.model_registry import ModelRegistry
from api.components.model_status import ModelStatuses
from api.components.stream_limit import StreamLimit
from api.extension import api_parts
from api.http.send_buffer import SendBuffers
from api.observability.counters import CounterReporter, Counters
from api.observability.exposition import Exposition
from api.observability.request_trace import api_spans
from api.services import Describe, Part, Services
from api.submission.input_store import build_input_store
from api.submission.job_request import InputChecks
from api.submission.shadow import ShadowCopies
from api.submission.waiting import PendingWaits
from headrace.config.model.catalog import Catalog
from headrace.config.settings import Settings
from headrace.queue.dead_letters import DeadLetters
from headrace.queue.failures import Failures
from headrace.queue.following.piece_log import PieceLog
from headrace.queue.following.subscription import Subscription
from headrace.queue.following.waiters import Waiters
from headrace.queue.following.watcher import JobWatcher
from headrace.queue.job_queue import JobQueue
from headrace.queue.scrape import Scraper
from headrace.queue.webhook_deliveries import DeliveryStore
from headrace.redis.connection import connect_async
from headrace.registry.catalog import ConfigReader
from headrace.registry.model import DeclaredModels
from headrace.runs.records import RunRecords
from headrace.webhooks.endpoint import WebhookPolicy


def build(
    settings: Settings,
    catalog: Catalog,
    describe: Describe,
    declared: DeclaredModels | None = None,
) -> Services:
    """Build the services; they connect when first used.

    With the models that the models file declares, the catalog follows the registry.

    Raises:
        ConfigError: redis_url is not set, or the payload store cannot be used.
    """
    redis_url = settings.needed_redis_url("the API")
    client = connect_async(redis_url)
    queue = JobQueue(client, job_index_max=settings.job_index_max)
    counters = Counters()
    # A new id for each start: a restarted process must not receive its predecessor's completions.
    api_id = os.urandom(6).hex()
    subscription = Subscription(client)
    waiters = Waiters(subscription, api_id)
    counter_reporter = CounterReporter(client, counters, waiters)
    input_store = build_input_store(settings, redis_url)
    services = Services(
        settings=settings,
        client=client,
        describe=describe,
        catalog=catalog,
        model_statuses=ModelStatuses(queue, catalog),
        authenticator=Authenticator(settings, queue, subscription)
        if settings.asks_for_keys
        else None,
        stream_limit=StreamLimit(settings.event_streams_max, settings.event_streams_per_key),
        send_buffers=SendBuffers(),
        input_checks=InputChecks(catalog.served),
        input_store=input_store,
        shadow_copies=ShadowCopies(queue, input_store, counters, catalog.has_shadow),
        webhook_policy=WebhookPolicy(
            on=bool(settings.webhook_secrets),
            allow_http=settings.webhook_allow_http,
            networks=settings.webhook_allow_networks,
        ),
        queue=queue,
        waiters=waiters,
        pending_waits=PendingWaits(),
        watcher=JobWatcher(subscription, queue),
        piece_log=PieceLog(subscription, queue),
        dead_letters=DeadLetters(queue),
        failures=Failures(queue, settings.failed_ttl_s),
        webhook_deliveries=DeliveryStore(queue),
        runs=RunRecords(queue),
        counters=counters,
        counter_reporter=counter_reporter,
        scraper=_scraper(client, catalog, counter_reporter),
        exposition=Exposition(),
        spans=api_spans(os.environ),
    )
    services.parts = _parts(services, subscription)
    for service in (part.service(services) for part in api_parts() if part.service is not None):
        services.added[type(service)] = service
        services.parts.append(Part(service.close))
    if declared is not None:
        registry = _registry(services, subscription, declared)
        services.registry = registry
        services.parts.append(Part(registry.stop, registry.start, registry.dismiss))
    return services


def _parts(services: Services, subscription: Subscription) -> list[Part]:
    """Return what starts and stops; each part comes after those that it uses."""
    spans, waiters, watcher = services.spans, services.waiters, services.watcher
    tracing = [] if spans is None else [Part(partial(asyncio.to_thread, spans.close))]
    reporter, copies = services.counter_reporter, services.shadow_copies
    expiry = ExpiryTask(services.queue)
    return [
        *tracing,
        Part(services.client.aclose),
        Part(services.input_store.close),
        Part(services.queue.close),
        Part(reporter.stop, reporter.start),
        Part(copies.stop, copies.start),
        Part(expiry.stop, expiry.start),
        Part(subscription.stop, subscription.start),
        Part(services.piece_log.stop),
        Part(watcher.stop, dismiss=watcher.dismiss),
        Part(waiters.stop, dismiss=waiters.dismiss),
    ]


def _scraper(client: redis.asyncio.Redis, catalog: Catalog, reporter: CounterReporter) -> Scraper:
    return Scraper(client, catalog.served, reporter.report)


def _registry(
    services: Services, subscription: Subscription, declared: DeclaredModels
) -> ModelRegistry:
    """Return the part that makes the catalog follow the registry."""
    client, catalog = services.client, services.catalog

    def models_changed() -> None:
        services.scraper = _scraper(client, catalog, services.counter_reporter)

    reader = ConfigReader(services.settings, catalog, lenient=True)
    return ModelRegistry(subscription, services.queue, catalog, declared, reader, models_changed)
