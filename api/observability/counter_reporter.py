"""Report the counters of an API process to Redis, so that any process can answer for all.

Counts are added to `hr:stats:<model>` every second and before a scrape, never within a request. The
number of waiting requests is written when it changes. A killed process loses its last second.
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
from headrace.queue.tasks import cancel_and_wait
from headrace.queue.waiters import Waiters
from headrace.redis import keys
from headrace.redis.fast_connection import exchange, pack_all
from headrace.redis.scripts import Command

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
STOP_MAX_S: Final = 2.0
#: Seconds after which the number of waiting requests is written again, before its key expires.
REFRESH_S: Final = keys.API_TTL_S / 3


class CounterReporter:
    """Reports the counters of one API process, and sums the waiting requests of all.

    Args:
        client: the connection.
        counters: the counters of this process.
        waiters: the waiting requests of this process.
    """

    def __init__(self, client: redis.asyncio.Redis, counters: Counters, waiters: Waiters) -> None:
        self._client = client
        self._counters = counters
        self._waiters = waiters
        self._waiting = 0
        self._waiting_at = 0.0
        self._lock = asyncio.Lock()
        #: The last report, if Redis did not answer it in time; None otherwise.
        self._failure: RedisTimeoutError | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to report, in the background."""
        self._task = asyncio.create_task(self._repeat())

    async def stop(self) -> None:
        """Report the rest; without Redis it is lost."""
        if self._task is not None:
            # Not during a report: its counts would be added twice.
            async with self._lock:
                self._task.cancel()
            await cancel_and_wait(self._task)
        with contextlib.suppress(RedisError, OSError):
            async with asyncio.timeout(STOP_MAX_S):
                await self._report()

    async def report_with(self, commands: bytes, count: int) -> list[Any]:
        """Report now, with `count` packed commands behind it; return their replies.

        Raises:
            redis.exceptions.RedisError: Redis does not answer.
        """
        return await self._report(commands, count)

    def waiting(self, reported: Mapping[str, int]) -> int:
        """Return the number of waiting requests of all API processes.

        Args:
            reported: the number of each live process, by its id.
        """
        others = (count for api_id, count in reported.items() if api_id != self._waiters.api_id)
        return self._waiters.count + sum(others)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self._report()
            except (RedisError, OSError) as error:
                logger.debug("counters not reported; Redis does not answer: %s", error)

    async def _report(self, behind: bytes = b"", count: int = 0) -> list[Any]:
        before = self._failure
        # One at a time, so that an older count of waiting requests never overwrites a newer one.
        async with self._lock:
            if self._failure is not None and self._failure is not before:
                # Calls that waited behind an unanswered one fail with it: each would otherwise wait
                # as long again. After a lost connection the others still try.
                raise self._failure
            counts, waiting = self._counters.take(), self._waiters.count
            now = asyncio.get_running_loop().time()
            commands: list[Command] = [
                ("HINCRBY", keys.stats(model), name, by) for (model, name), by in counts.items()
            ]
            if waiting != self._waiting or (waiting and now - self._waiting_at >= REFRESH_S):
                commands.append(
                    ("SET", keys.api(self._waiters.api_id), waiting, "EX", keys.API_TTL_S)
                )
                self._waiting, self._waiting_at = waiting, now
            if not commands and not count:
                return []
            try:
                own = len(commands)
                answers = await exchange(self._client, pack_all(commands) + behind, own + count)
            except BaseException as error:
                # If only the reply was lost, they are added twice: better than losing them.
                self._counters.give_back(counts)
                self._waiting = -1
                self._failure = error if isinstance(error, RedisTimeoutError) else None
                raise
            self._failure = None
            self._give_back(counts, answers[:own])
            return answers[own:]

    def _give_back(self, counts: Counts, answers: list[Any]) -> None:
        """Keep the counts that Redis refused, for example at maxmemory, for the next report."""
        replies = zip(counts.items(), answers, strict=False)
        refused = {
            name: count for (name, count), answer in replies if isinstance(answer, Exception)
        }
        self._counters.give_back(Counter(refused))
        if any(isinstance(answer, Exception) for answer in answers[len(counts) :]):
            self._waiting = -1
