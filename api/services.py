"""The services that the endpoints of one API process share; `api.build` builds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import redis.asyncio

    from api.auth.authenticator import Authenticator, Needs
    from api.components.expiry_task import ExpiryTask
    from api.components.model_registry import ModelRegistry
    from api.components.model_status import ModelStatuses
    from api.components.stream_limit import StreamLimit
    from api.http.messages import Request
    from api.http.send_buffer import SendBuffers
    from api.observability.counters import CounterReporter, Counters
    from api.observability.exposition import Exposition
    from api.observability.request_trace import ApiSpans
    from api.submission.input_store import InputStore
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
    from headrace.runs.records import RunRecords
    from headrace.webhooks.endpoint import WebhookPolicy


class Describe(Protocol):
    """Returns the OpenAPI description."""

    def __call__(self, *, with_models: bool) -> dict[str, Any]:
        """Return it with the models that declare inputs, or without."""


class Service(Protocol):
    """What an extension adds to the services of a process."""

    def close(self) -> None:
        """Close its connections, after the last request."""


_Service = TypeVar("_Service", bound=Service)


@dataclass(slots=True)
class Services:
    """The parts that the endpoints share.

    Attributes:
        describe: returns the OpenAPI description, with the models that declare inputs or without.
        authenticator: authenticates requests; None if no API keys are required.
        added: what the extensions add, by its class.
        registry: the registered models; None if the catalog never changes.
        spans: the spans of requests and submits; None if tracing is off.
        check_token: refuses a native request without a token that a surface requires; None if
            none does.
    """

    settings: Settings
    catalog: Catalog
    describe: Describe
    queue: JobQueue
    dead_letters: DeadLetters
    failures: Failures
    runs: RunRecords
    subscription: Subscription
    waiters: Waiters
    watcher: JobWatcher
    piece_log: PieceLog
    stream_limit: StreamLimit
    model_statuses: ModelStatuses
    counters: Counters
    counter_reporter: CounterReporter
    expiry_task: ExpiryTask
    scraper: Scraper
    exposition: Exposition
    input_checks: InputChecks
    input_store: InputStore
    authenticator: Authenticator | None
    webhook_policy: WebhookPolicy
    webhook_deliveries: DeliveryStore
    client: redis.asyncio.Redis
    pending_waits: PendingWaits
    send_buffers: SendBuffers
    shadow_copies: ShadowCopies
    registry: ModelRegistry | None = None
    spans: ApiSpans | None = None
    check_token: Callable[[Services, Request, Needs | None], None] | None = None
    added: dict[type[Service], Service] = field(default_factory=dict)

    def of(self, kind: type[_Service]) -> _Service:
        """Return what an extension has added, by its class."""
        service = self.added[kind]
        assert isinstance(service, kind)  # noqa: S101 - `build` sorts them by class
        return service

    @property
    def asks_who_calls(self) -> bool:
        """Return whether requests need an API key or a token."""
        return self.authenticator is not None or self.check_token is not None

    def dismiss(self) -> None:
        """Answer every waiting request and event stream, now and from now on."""
        self.waiters.dismiss()
        self.watcher.dismiss()
        if self.registry is not None:
            self.registry.dismiss()

    async def start(self) -> None:
        """Start to listen for ended jobs, to report counters and to expire jobs."""
        if self.registry is not None:
            await self.registry.start()
        self.subscription.start()
        await self.counter_reporter.start()
        await self.expiry_task.start()
        await self.shadow_copies.start()

    async def stop(self) -> None:
        """End every wait and close the connections."""
        if self.registry is not None:
            await self.registry.stop()
        self.waiters.stop()
        await self.watcher.stop()
        await self.piece_log.stop()
        await self.subscription.stop()
        await self.expiry_task.stop()
        await self.shadow_copies.stop()
        await self.counter_reporter.stop()
        await self.queue.close()
        self.input_store.close()
        for service in self.added.values():
            service.close()
        await self.client.aclose()
        if self.spans is not None:
            await asyncio.to_thread(self.spans.close)
