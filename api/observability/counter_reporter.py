"""Reports the counts of one API process to Redis, so that any process can show the sum of all.

Counts are added to `hr:stats:<model>` each second and before a scrape, never within a request. The
number of waiting requests is written when it changes. The last second of a killed process is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import redis.asyncio
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api.observability.counters import Counters, Counts
from headrace.queue.asyncio_tasks import cancel_and_wait
from headrace.queue.waiters import Waiters
from headrace.redis import keys
from headrace.redis.fast_connection import exchange, pack_all
from headrace.redis.scripts import Command

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
STOP_MAX_S: Final = 2.0
#: Seconds after which the number of waiting requests is written again: its key expires.
REFRESH_S: Final = keys.API_TTL_S / 3


class CounterReporter:
    """Reports one API process's counts and its number of waiting requests.

    Args:
        client: the connection.
        counters: the counts.
        waiters: the waiting requests.
    """

    def __init__(self, client: redis.asyncio.Redis, counters: Counters, waiters: Waiters) -> None:
        self._client = client
        self._counters = counters
        self._waiters = waiters
        self._reported_waiting = 0
        self._reported_at = 0.0
        self._lock = asyncio.Lock()
        #: The timeout of the last report; None if Redis answered it, or if it failed at once.
        self._failure: RedisTimeoutError | None = None
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
        with contextlib.suppress(RedisError, OSError):
            async with asyncio.timeout(STOP_MAX_S):
                await self.report()

    def waiting(self, reported: Mapping[str, int]) -> int:
        """Return how many requests wait in all API processes.

        Args:
            reported: the last reported number of each live process, by its `api_id`.
        """
        others = (count for api_id, count in reported.items() if api_id != self._waiters.api_id)
        return self._waiters.count + sum(others)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.report()
            except (RedisError, OSError) as error:
                logger.debug("counters not reported: %s", error)

    async def report(self, commands: bytes = b"", count: int = 0) -> list[Any]:
        """Report the counts, and send `count` packed commands after them in the same write.

        Returns:
            The replies to `commands`.

        Raises:
            redis.exceptions.RedisError: Redis does not answer; the counts are kept.
        """
        before = self._failure
        # One at a time: an older number of waiting requests must not overwrite a newer one.
        async with self._lock:
            if self._failure is not None and self._failure is not before:
                # A report that waited here while another one timed out fails with it, as it would
                # wait as long again. After a lost connection it tries for itself.
                raise self._failure
            counts, waiting = self._counters.take(), self._waiters.count
            now = asyncio.get_running_loop().time()
            own: list[Command] = [
                ("HINCRBY", keys.stats(model), name, by) for (model, name), by in counts.items()
            ]
            due = waiting and now - self._reported_at >= REFRESH_S
            if waiting != self._reported_waiting or due:
                own.append(("SET", keys.api(self._waiters.api_id), waiting, "EX", keys.API_TTL_S))
                self._reported_waiting, self._reported_at = waiting, now
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
            return replies[len(own) :]

    def _keep_refused(self, counts: Counts, replies: list[Any]) -> None:
        """Keep what Redis refused, such as at its maxmemory, for the next report."""
        pairs = zip(counts.items(), replies, strict=False)
        refused = {name: count for (name, count), reply in pairs if isinstance(reply, Exception)}
        self._counters.give_back(Counter(refused))
        if any(isinstance(reply, Exception) for reply in replies[len(counts) :]):
            self._reported_waiting = -1
