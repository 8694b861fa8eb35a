"""The services that the endpoints of one API process share; `api.build` builds them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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
    from api.submission.input_store import InputStore
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
    """The parts that the endpoints share.

    Attributes:
        describe: returns the OpenAPI description.
        authenticator: authenticates requests; None if no API keys are required.
        client: the connection to Redis.
        spans: the spans of requests and submits; None if tracing is off.
    """

    settings: Settings
    catalog: Catalog
    describe: Callable[[], dict[str, Any]]
    queue: JobQueue
    dead_letters: DeadLetters
    runs: RunRecords
    waiters: Waiters
    watcher: JobWatcher
    stream_limit: StreamLimit
    model_statuses: ModelStatuses
    counters: Counters
    counter_reporter: CounterReporter
    expiry_task: ExpiryTask
    scraper: Scraper
    exposition: Exposition
    input_store: InputStore
    files: FileService
    authenticator: Authenticator | None
    webhook_policy: WebhookPolicy
    webhook_deliveries: DeliveryStore
    client: redis.asyncio.Redis
    pending_waits: PendingWaits
    spans: ApiSpans | None = None

    def dismiss(self) -> None:
        """Answer every waiting request and event stream, now and from now on."""
        self.waiters.dismiss()
        self.watcher.dismiss()

    async def start(self) -> None:
        """Start to listen for ended jobs, to report counters and to expire jobs."""
        await self.waiters.start()
        await self.counter_reporter.start()
        await self.expiry_task.start()
        if self.authenticator is not None:
            await self.authenticator.start()

    async def stop(self) -> None:
        """End every wait and close the connections."""
        await self.waiters.stop()
        await self.watcher.stop()
        await self.expiry_task.stop()
        await self.counter_reporter.stop()
        if self.authenticator is not None:
            await self.authenticator.stop()
        await self.queue.close()
        self.input_store.close()
        self.files.close()
        await self.client.aclose()
        if self.spans is not None:
            await asyncio.to_thread(self.spans.close)
