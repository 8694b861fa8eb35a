"""What the API's processes tell Redis of themselves, so that any of them can answer for all.

Counts go to `hr:stats:<model>` each second and before a scrape, never within a request. How many
requests wait is said when it has changed. A process that is killed takes its last second with it.
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
#: What was said of waiting requests is said again so often, before its key runs out.
REFRESH_S: Final = keys.API_TTL_S / 3


class CounterReporter:
    """Tells Redis what one API process counts, and reads what all of them have told.

    Args:
        client: the connection.
        counters: what is counted here.
        waiters: the requests that wait here.
    """

    def __init__(self, client: redis.asyncio.Redis, counters: Counters, waiters: Waiters) -> None:
        self._client = client
        self._counters = counters
        self._waiters = waiters
        self._said = 0
        self._said_at = 0.0
        self._lock = asyncio.Lock()
        #: That the last telling was not answered in time; None where it was, or failed at once.
        self._failure: RedisTimeoutError | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to tell, in the background."""
        self._task = asyncio.create_task(self._repeat())

    async def stop(self) -> None:
        """Tell what is left; without Redis it is lost."""
        if self._task is not None:
            # Not in the midst of telling, or it would be told twice.
            async with self._lock:
                self._task.cancel()
            await cancel_and_wait(self._task)
        with contextlib.suppress(RedisError, OSError):
            async with asyncio.timeout(STOP_MAX_S):
                await self._tell()

    async def tell_and_ask(self, commands: bytes, count: int) -> list[Any]:
        """Tell now what is counted here, and send so many packed commands behind it; their replies.

        Raises:
            redis.exceptions.RedisError: Redis does not answer.
        """
        return await self._tell(commands, count)

    def waiting(self, said: Mapping[str, int]) -> int:
        """Requests that wait, over all API processes.

        Args:
            said: what each live one has said of itself, by its id.
        """
        others = (count for api_id, count in said.items() if api_id != self._waiters.api_id)
        return self._waiters.count + sum(others)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self._tell()
            except (RedisError, OSError) as error:
                logger.debug("counts are kept until Redis answers: %s", error)

    async def _tell(self, behind: bytes = b"", count: int = 0) -> list[Any]:
        before = self._failure
        # One at a time, so that an older count of waiting requests never overwrites a newer one.
        async with self._lock:
            if self._failure is not None and self._failure is not before:
                # Who stood behind one that Redis did not answer fails with it: each would otherwise
                # wait as long again. A connection that was lost costs nobody else his try.
                raise self._failure
            counts, waiting = self._counters.take(), self._waiters.count
            now = asyncio.get_running_loop().time()
            commands: list[Command] = [
                ("HINCRBY", keys.stats(model), name, by) for (model, name), by in counts.items()
            ]
            if waiting != self._said or (waiting and now - self._said_at >= REFRESH_S):
                commands.append(
                    ("SET", keys.api(self._waiters.api_id), waiting, "EX", keys.API_TTL_S)
                )
                self._said, self._said_at = waiting, now
            if not commands and not count:
                return []
            try:
                told = len(commands)
                answers = await exchange(self._client, pack_all(commands) + behind, told + count)
            except BaseException as error:
                # If only the answer was lost, these are told twice: better than never.
                self._counters.give_back(counts)
                self._said = -1
                self._failure = error if isinstance(error, RedisTimeoutError) else None
                raise
            self._failure = None
            self._give_back(counts, answers[:told])
            return answers[told:]

    def _give_back(self, counts: Counts, answers: list[Any]) -> None:
        """What Redis refused, as at maxmemory, is told again."""
        told = zip(counts.items(), answers, strict=False)
        refused = {name: count for (name, count), answer in told if isinstance(answer, Exception)}
        self._counters.give_back(Counter(refused))
        if any(isinstance(answer, Exception) for answer in answers[len(counts) :]):
            self._said = -1
