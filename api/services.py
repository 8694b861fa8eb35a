"""What the routes share: built once per process, when it starts."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field

import redis.asyncio

from api.auth.authenticator import Authenticator
from api.components.expiry_task import ExpiryTask
from api.components.files import FileService, build_filing
from api.components.model_status import ModelStatuses
from api.components.stream_limit import StreamLimit
from api.observability.counter_reporter import CounterReporter
from api.observability.counters import Counters
from api.observability.exposition import Exposition
from api.observability.spans import ApiSpans, api_spans
from api.submission.payloads import InputStore, build_payloads
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


@dataclass(slots=True)
class Services:
    """What the routes share.

    Attributes:
        door: asks for API keys; None where nobody is asked.
        clients: the connections, to be closed at the end.
        vigils: over the requests that wait.
        spans: of requests and submits; None where none are sent.
    """

    settings: Settings
    catalog: Catalog
    queue: JobQueue
    letters: DeadLetters
    runs: RunRecords
    waiters: Waiters
    news: JobWatcher
    seats: StreamLimit
    fleet: ModelStatuses
    counters: Counters
    tally: CounterReporter
    expiry: ExpiryTask
    scraper: Scraper
    exposition: Exposition
    payloads: InputStore
    filing: FileService
    door: Authenticator | None
    webhooks: WebhookPolicy
    hooks: DeliveryStore
    clients: list[redis.asyncio.Redis]
    vigils: PendingWaits = field(default_factory=PendingWaits)
    spans: ApiSpans | None = None

    def dismiss(self) -> None:
        """Have everybody who waits or watches answered, now and from here on."""
        self.waiters.dismiss()
        self.news.dismiss()

    async def start(self) -> None:
        """Begin to listen for ended jobs, to tell what is counted and to look for what is over."""
        await self.waiters.start()
        await self.tally.start()
        await self.expiry.start()
        if self.door is not None:
            await self.door.start()

    async def stop(self) -> None:
        """End every wait and close the connections."""
        await self.waiters.stop()
        await self.news.stop()
        await self.expiry.stop()
        await self.tally.stop()
        if self.door is not None:
            await self.door.stop()
        await self.queue.close()
        self.payloads.close()
        self.filing.close()
        for client in self.clients:
            await client.aclose()
        if self.spans is not None:
            await asyncio.to_thread(self.spans.close)


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
        spans=api_spans(os.environ),
    )
