"""The services that the endpoints of an API process share, built from its settings and models."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from api.auth.authenticator import Authenticator, Needs
from api.components.model_registry import ModelRegistry
from api.components.model_status import ModelStatuses
from api.components.overview import Overviews
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
from headrace.errors import BrokerError, HeadraceError, TooManyStreams
from headrace.observability.tracing import tracing
from headrace.payloads.input_ref import InputRefs
from headrace.payloads.stores import THREADS, build_stores
from headrace.queue.asyncio_tasks import RunningTasks, cancel_and_wait
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
from headrace.redis.scripts.jobs import EXPIRE_MAX_JOBS
from headrace.registry.catalog import ConfigReader
from headrace.registry.model import DeclaredModels
from headrace.runs.records import RunRecords
from headrace.webhooks.endpoint import WebhookPolicy

#: How often waiting jobs expire whose time to start has passed, even without any worker.
EXPIRE_INTERVAL_S: Final = 1.0

logger = logging.getLogger(__name__)
_Service = TypeVar("_Service")


@dataclass(frozen=True, slots=True)
class Part:
    """What lives as long as the process does.

    Attributes:
        stop: closes its connections and ends its tasks.
        start: begins what it does in the background.
        dismiss: answers what waits for it, now and from now on.
    """

    stop: Callable[[], Awaitable[None] | None]
    start: Callable[[], Awaitable[None] | None] = lambda: None
    dismiss: Callable[[], None] = lambda: None


class Services:
    """What the endpoints share; it connects when first used.

    Args:
        describe: returns the OpenAPI description, with the models that declare inputs or without.
        declared: what the models file declares; the catalog then follows the registry.

    Attributes:
        stopping: whether the process stops soon, for load balancers.
        registry: the registered models; None if the catalog never changes.
        authenticator: authenticates requests; None if no API keys are required.
        check_token: refuses a native request without a token that a surface requires; None if
            none does.
        spans: the spans of requests and submits; None if tracing is off.
        added: what the extensions add, by its class.
        parts: what starts in this order, and stops in the opposite one.

    Raises:
        ConfigError: redis_url is not set, or the payload store cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        describe: Callable[..., dict[str, Any]],
        declared: DeclaredModels | None = None,
    ) -> None:
        redis_url = settings.needed_redis_url("the API")
        self.settings, self.catalog, self.describe = settings, catalog, describe
        self.stopping = False
        self.client = client = connect_async(redis_url)
        self.queue = queue = JobQueue(client, job_index_max=settings.job_index_max)
        self.model_statuses = ModelStatuses(queue, catalog)
        self.overviews = Overviews(queue, catalog, self.model_statuses)

        subscription = Subscription(client)
        # A new id for each start: a restarted process must not receive its predecessor's
        # completions.
        self.waiters = Waiters(subscription, os.urandom(6).hex())
        self.pending_waits = PendingWaits()
        self.watcher = JobWatcher(subscription, queue)
        self.piece_log = PieceLog(subscription, queue)

        self.counters = Counters()
        self.counter_reporter = CounterReporter(client, self.counters, self.waiters)
        self.scraper = self._new_scraper()
        self.exposition = Exposition()
        traced = tracing("api", os.environ)
        self.spans = None if traced is None else ApiSpans(traced)

        self.authenticator = (
            Authenticator(settings, queue, subscription) if settings.asks_for_keys else None
        )
        self.check_token: Callable[[Services, Request, Needs | None], None] | None = None
        self.stream_limit = StreamLimit(settings.event_streams_max, settings.event_streams_per_key)
        self.send_buffers = SendBuffers()

        self.input_checks = InputChecks(catalog.served)
        input_refs = InputRefs(settings, THREADS)
        self.input_store = InputStore(build_stores(settings, redis_url), input_refs)
        self.shadow_copies = ShadowCopies(
            queue, self.input_store, self.counters, catalog.has_shadow
        )
        self.webhook_policy = WebhookPolicy(
            on=bool(settings.webhook_secrets),
            allow_http=settings.webhook_allow_http,
            networks=settings.webhook_allow_networks,
        )

        self.dead_letters = DeadLetters(queue)
        self.failures = Failures(queue, settings.failed_ttl_s)
        self.webhook_deliveries = DeliveryStore(queue)
        self.runs = RunRecords(queue)

        self.added: dict[type, object] = {}
        self.parts = self._own_parts(subscription)
        self.registry: ModelRegistry | None = None
        if declared is not None:
            reader = ConfigReader(settings, catalog, lenient=True)
            self.registry = registry = ModelRegistry(
                subscription, queue, catalog, declared, reader, self._models_changed
            )
            self.parts.append(Part(registry.stop, registry.start, registry.dismiss))

    def of(self, kind: type[_Service]) -> _Service:
        """Return what an extension has added, by its class."""
        service = self.added[kind]
        assert isinstance(service, kind)  # noqa: S101 - they are sorted by class
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
        """Start all parts; if one raises, stop those before it."""
        for place, part in enumerate(self.parts):
            try:
                if (starting := part.start()) is not None:
                    await starting
            except HeadraceError:
                await _stop(self.parts[:place])
                raise

    async def stop(self) -> None:
        """Stop all parts."""
        await _stop(self.parts)

    def _own_parts(self, subscription: Subscription) -> list[Part]:
        """Return what starts and stops; each part comes after those that it uses."""
        spans, reporter, copies = self.spans, self.counter_reporter, self.shadow_copies
        tracing = [] if spans is None else [Part(partial(asyncio.to_thread, spans.close))]
        tasks = RunningTasks()
        return [
            *tracing,
            Part(self.client.aclose),
            Part(self.input_store.close),
            Part(self.queue.close),
            Part(reporter.stop, reporter.start),
            Part(copies.stop, copies.start),
            Part(lambda: cancel_and_wait(*tasks), lambda: tasks.begin(_expire_jobs(self.queue))),
            Part(subscription.stop, subscription.start),
            Part(self.piece_log.stop),
            Part(self.watcher.stop, dismiss=self.watcher.dismiss),
            Part(self.waiters.stop, dismiss=self.waiters.dismiss),
            *([] if self.authenticator is None else [Part(self.authenticator.stop)]),
        ]

    def _new_scraper(self) -> Scraper:
        return Scraper(self.client, self.catalog.served, self.counter_reporter.report)

    def _models_changed(self) -> None:
        self.scraper = self._new_scraper()


async def _stop(parts: Sequence[Part]) -> None:
    for part in reversed(parts):
        if (stopping := part.stop()) is not None:
            await stopping


async def _expire_jobs(queue: JobQueue) -> None:
    while True:
        try:
            while await queue.expire() == EXPIRE_MAX_JOBS:
                pass
        except BrokerError as error:
            logger.debug("jobs not expired; Redis does not answer: %s", error)
        await asyncio.sleep(EXPIRE_INTERVAL_S)


class StreamLimit:
    """Limits the open event streams of one API process, all of them and those of each API key."""

    def __init__(self, most: int, most_per_key: int) -> None:
        self._most = most
        self._most_per_key = most_per_key
        self._taken: Counter[str] = Counter()

    def most(self, *, keyed: bool) -> int:
        """Return how many streams one request may open."""
        return min(self._most, self._most_per_key) if keyed else self._most

    def take(self, key: str, *, keyed: bool, count: int = 1) -> None:
        """Count more streams; raise TooManyStreams if a limit would be exceeded."""
        if self.open_streams + count > self._most:
            raise TooManyStreams(
                f"this API process has {self.open_streams} event streams open, its limit is "
                f"{self._most}, and this request needs {count}",
                hint="Try again later, or wait with ?wait; event_streams_max is the limit.",
                retry_after_s=5,
            )
        if keyed and self._taken[key] + count > self._most_per_key:
            raise TooManyStreams(
                f"API key {key} has {self._taken[key]} event streams open here, its limit is "
                f"{self._most_per_key}, and this request needs {count}",
                hint="Close some; event_streams_per_key is the limit.",
                retry_after_s=5,
            )
        self._taken[key] += count

    @property
    def open_streams(self) -> int:
        """The number of open streams."""
        return self._taken.total()

    def leave(self, key: str, count: int = 1) -> None:
        """Count fewer streams."""
        self._taken[key] -= count
        if not self._taken[key]:
            del self._taken[key]
