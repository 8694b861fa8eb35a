"""The services that the endpoints of one API process share; `api.build` builds them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import redis.asyncio

    from api.auth.authenticator import Authenticator, Needs
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


_Service = TypeVar("_Service")


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """What lives as long as the process does.

    Attributes:
        stop: closes its connections and ends its tasks.
        start: begins what it does in the background.
        dismiss: answers what waits for it, now and from now on.
    """

    stop: Callable[[], Awaitable[None] | None]
    start: Callable[[], Awaitable[None] | None] = _nothing
    dismiss: Callable[[], None] = _nothing


@dataclass(slots=True)
class Services:
    """What the endpoints share.

    Attributes:
        describe: returns the OpenAPI description, with the models that declare inputs or without.
        registry: the registered models; None if the catalog never changes.
        authenticator: authenticates requests; None if no API keys are required.
        check_token: refuses a native request without a token that a surface requires; None if
            none does.
        spans: the spans of requests and submits; None if tracing is off.
        added: what the extensions add, by its class.
        parts: what starts in this order, and stops in the opposite one.
    """

    settings: Settings
    client: redis.asyncio.Redis
    describe: Describe

    # The models.
    catalog: Catalog
    model_statuses: ModelStatuses

    # Who calls, and how much.
    authenticator: Authenticator | None
    stream_limit: StreamLimit
    send_buffers: SendBuffers

    # Submits.
    input_checks: InputChecks
    input_store: InputStore
    shadow_copies: ShadowCopies
    webhook_policy: WebhookPolicy

    # Jobs that are queued, run or have ended.
    queue: JobQueue
    waiters: Waiters
    pending_waits: PendingWaits
    watcher: JobWatcher
    piece_log: PieceLog
    dead_letters: DeadLetters
    failures: Failures
    webhook_deliveries: DeliveryStore
    runs: RunRecords

    # Metrics.
    counters: Counters
    counter_reporter: CounterReporter
    scraper: Scraper
    exposition: Exposition
    spans: ApiSpans | None

    registry: ModelRegistry | None = None
    check_token: Callable[[Services, Request, Needs | None], None] | None = None
    added: dict[type, object] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

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
        for part in self.parts:
            part.dismiss()

    async def start(self) -> None:
        """Start all parts."""
        for part in self.parts:
            if (starting := part.start()) is not None:
                await starting

    async def stop(self) -> None:
        """Stop all parts."""
        for part in reversed(self.parts):
            if (stopping := part.stop()) is not None:
                await stopping
