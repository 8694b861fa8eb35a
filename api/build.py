"""Builds the services of one API process from its settings and its models file."""

from __future__ import annotations

import os

from api.auth.authenticator import Authenticator
from api.components.expiry_task import ExpiryTask
from api.components.files import build_filing
from api.components.model_status import ModelStatuses
from api.components.stream_limit import StreamLimit
from api.observability.counter_reporter import CounterReporter
from api.observability.counters import Counters
from api.observability.exposition import Exposition
from api.observability.spans import api_spans
from api.services import Services
from api.submission.payloads import build_payloads
from api.submission.waiting import PendingWaits
from headrace.config.model_catalog import Catalog
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.queue.dead_letters import DeadLetters
from headrace.queue.job_queue import JobQueue
from headrace.queue.scrape import Scraper
from headrace.queue.waiters import Waiters
from headrace.queue.watcher import JobWatcher
from headrace.queue.webhook_deliveries import DeliveryStore
from headrace.redis.connection import connect_async
from headrace.runs.records import RunRecords
from headrace.webhooks.endpoint import WebhookPolicy


def build(settings: Settings, catalog: Catalog) -> Services:
    """Build the services; they connect when first used.

    Raises:
        ConfigError: the settings name no Redis, or no payload store that can be used.
    """
    if settings.redis_url is None:
        raise ConfigError(
            "the API has no Redis: redis_url is not set",
            hint="Set HEADRACE_REDIS_URL, or run `headrace up`, which brings its own.",
        )
    client = connect_async(settings.redis_url)
    queue = JobQueue(client, job_index_max=settings.job_index_max)
    counters = Counters()
    # A name that no other process has or had: a restart must not hear its predecessor's jobs.
    api_id = os.urandom(6).hex()
    waiters = Waiters(client, api_id)
    tally = CounterReporter(client, counters, waiters)
    return Services(
        settings=settings,
        catalog=catalog,
        queue=queue,
        letters=DeadLetters(client, queue),
        runs=RunRecords(client, queue),
        waiters=waiters,
        news=JobWatcher(client, queue, api_id),
        seats=StreamLimit(settings.event_streams_max, settings.event_streams_per_key),
        fleet=ModelStatuses(queue, catalog),
        counters=counters,
        tally=tally,
        expiry=ExpiryTask(queue),
        scraper=Scraper(client, catalog.served, tally.tell_and_ask),
        exposition=Exposition(),
        payloads=build_payloads(settings, settings.redis_url),
        filing=build_filing(settings, settings.redis_url),
        door=Authenticator(settings, queue, client) if settings.asks_for_keys else None,
        webhooks=WebhookPolicy(settings),
        hooks=DeliveryStore(queue),
        clients=[client],
        vigils=PendingWaits(),
        spans=api_spans(os.environ),
    )
