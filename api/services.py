"""The services that the routes of one API process share; `api.build` builds them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis.asyncio

    from api.auth.authenticator import Authenticator
    from api.components.expiry_task import ExpiryTask
    from api.components.files import FileService
    from api.components.model_status import ModelStatuses
    from api.components.stream_limit import StreamLimit
    from api.observability.counter_reporter import CounterReporter
    from api.observability.counters import Counters
    from api.observability.exposition import Exposition
    from api.observability.spans import ApiSpans
    from api.submission.payloads import InputStore
    from api.submission.waiting import PendingWaits
    from headrace.config.model_catalog import Catalog
    from headrace.config.settings import Settings
    from headrace.queue.dead_letters import DeadLetters
    from headrace.queue.job_queue import JobQueue
    from headrace.queue.scrape import Scraper
    from headrace.queue.waiters import Waiters
    from headrace.queue.watcher import JobWatcher
    from headrace.queue.webhook_deliveries import DeliveryStore
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
    vigils: PendingWaits
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
