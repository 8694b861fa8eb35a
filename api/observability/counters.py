"""The counts of one API process, reported to Redis so that any process can show the sum of all.

Counts are added to `hr:stats:<model>` each second and before a scrape, never within a request. The
number of waiting requests is written with them. If the last one is gone, Redis has lost its data,
and each wait reads its record. The last second of a killed process is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Protocol

import redis.asyncio
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from typing_extensions import override

from headrace.errors import BrokerError
from headrace.observability.worker_report import (
    ADMITTED,
    ADMITTED_VERSION,
    REJECTED,
    ShadowResult,
    shadow_field,
)
from headrace.queue.asyncio_tasks import cancel_and_wait
from headrace.queue.following.waiters import Waiters
from headrace.redis import keys
from headrace.redis.fast_connection import TRAFFIC, exchange, pack_all
from headrace.redis.scripts import Command

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
STOP_MAX_S: Final = 2.0
#: What a report raises while Redis is away.
_AWAY: Final = (BrokerError, RedisError, OSError)

#: Counts to add, by model (`""` for no model) and field.
Counts = Counter[tuple[str, str]]
#: Fields of `hr:stats:`: `requests:<method> <code> <route>`.
REQUESTS: Final = "requests"
NO_MODEL: Final = ""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestObserver(Protocol):
    """Gets what is counted, such as for metrics of another server's names."""

    def admitted(self, model: str, version: str, count: int) -> None:
        """Take jobs that were enqueued; `version` is the one that they ask for, "" for none."""

    def answered(self, status: int) -> None:
        """Take an answer."""


class Counters:
    """Jobs admitted, submits refused and requests answered since the last `take`.

    Plain numbers without a lock, as everything happens on one event loop. `observers` are those of
    extensions.
    """

    def __init__(self) -> None:
        self.observers: list[RequestObserver] = []
        self._counts: Counts = Counter()
        self._requests: Counter[tuple[str, str, int]] = Counter()

    def admitted(self, model: str, version: str = "", count: int = 1) -> None:
        """Count enqueued jobs; `version` is the one that they ask for, "" for none."""
        self._counts[model, ADMITTED] += count
        if version:
            self._counts[model, f"{ADMITTED_VERSION}:{version}"] += count
        for observer in self.observers:
            observer.admitted(model, version, count)

    def shadowed(self, model: str, version: str, result: ShadowResult) -> None:
        """Count a copy for a shadow version that has no pair."""
        self._counts[model, shadow_field(version, result)] += 1

    def refused(self, model: str, reason: str) -> None:
        """Count a submit that was refused with the error of this code."""
        self._counts[model, f"{REJECTED}:{reason}"] += 1

    def answered(self, route: str, method: str, status: int) -> None:
        """Count an answered request; `route` is the template of its path, never the path."""
        self._requests[route, method, status] += 1
        for observer in self.observers:
            observer.answered(status)

    def take(self) -> Counts:
        """Return the counts by model and field of `hr:stats:<model>`, and reset them."""
        taken, self._counts = self._counts, Counter()
        requests, self._requests = self._requests, Counter()
        for (route, method, status), count in requests.items():
            shown = method if method in _METHODS else "other"
            taken[NO_MODEL, f"{REQUESTS}:{shown} {status} {route}"] += count
        if taken:
            # Only with other counts: a report is traffic too, and would cause the next one.
            taken.update({(NO_MODEL, name): n for name, n in TRAFFIC.take("api").items()})
        return taken

    def give_back(self, counts: Counts) -> None:
        """Keep counts that could not be reported for the next report."""
        self._counts.update(counts)


class BackgroundReporter(ABC):
    """Reports to Redis every INTERVAL_S seconds, and once more at its end."""

    def __init__(self) -> None:
        #: Held while a report is sent.
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to report in the background."""
        self._task = asyncio.create_task(self._repeat())

    async def stop(self) -> None:
        """Report the last counts; they are lost if Redis does not answer within STOP_MAX_S."""
        if self._task is not None:
            # A report that is cancelled half-way would be sent twice.
            async with self._lock:
                self._task.cancel()
            await cancel_and_wait(self._task)
        with contextlib.suppress(*_AWAY):
            async with asyncio.timeout(STOP_MAX_S):
                await self.report()

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.report()
            except _AWAY as error:
                logger.debug("counters not reported: %s", error)

    @abstractmethod
    async def report(self) -> Any:
        """Report what was counted since the last report; keep it if Redis does not answer."""


class CounterReporter(BackgroundReporter):
    """Reports one API process's counts and its number of waiting requests."""

    def __init__(self, client: redis.asyncio.Redis, counters: Counters, waiters: Waiters) -> None:
        super().__init__()
        self._client = client
        self._counters = counters
        self._waiters = waiters
        self._reported_waiting = 0
        #: The timeout of the last report; None if Redis answered it, or if it failed at once.
        self._failure: RedisTimeoutError | None = None

    def waiting(self, reported: Mapping[str, int]) -> int:
        """Return how many requests wait in all processes, by what each reported last."""
        others = (count for api_id, count in reported.items() if api_id != self._waiters.api_id)
        return self._waiters.count + sum(others)

    @override
    async def report(self, commands: bytes = b"", count: int = 0) -> list[Any]:
        """Report the counts, and send `count` packed commands after them in the same write.

        It returns the replies to these, or raises a RedisError and keeps the counts.
        """
        before = self._failure
        # One at a time: an older number of waiting requests must not overwrite a newer one.
        async with self._lock:
            if self._failure is not None and self._failure is not before:
                # A report that waited here while another one timed out fails with it, as it would
                # wait as long again. After a lost connection it tries for itself.
                raise self._failure
            counts, waiting = self._counters.take(), self._waiters.count
            own: list[Command] = [
                ("HINCRBY", keys.stats(model), name, by) for (model, name), by in counts.items()
            ]
            if waiting or self._reported_waiting:
                key = keys.api(self._waiters.api_id)
                own.append(("SET", key, waiting, "EX", keys.API_TTL_S, "GET"))
                self._reported_waiting = waiting
            if not own and not count:
                return []
            try:
                replies = await exchange(self._client, pack_all(own) + commands, len(own) + count)
            except BaseException as error:
                # If only the reply was lost, they count twice, which is better than never.
                self._counters.give_back(counts)
                self._reported_waiting = -1
                self._failure = error if isinstance(error, RedisTimeoutError) else None
                raise
            self._failure = None
            self._keep_refused(counts, replies[: len(own)])
            if waiting and replies[len(own) - 1] is None:
                # It had none before, or Redis has lost it.
                self._waiters.wake_all()
            return replies[len(own) :]

    def _keep_refused(self, counts: Counts, replies: list[Any]) -> None:
        """Keep what Redis refused, such as at its maxmemory, for the next report."""
        pairs = zip(counts.items(), replies, strict=False)
        refused = {name: count for (name, count), reply in pairs if isinstance(reply, Exception)}
        self._counters.give_back(Counter(refused))
        if any(isinstance(reply, Exception) for reply in replies[len(counts) :]):
            self._reported_waiting = -1
