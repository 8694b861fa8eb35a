"""The rates of API keys: token buckets in Redis, of which each process takes a share at once.

A request costs one token. Where it makes several jobs, each job costs one.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final

from headrace.access.api_key import Caller
from headrace.errors import RateLimited
from headrace.queue.job_queue import JobQueue

#: Seconds of a key's rate that a process takes from Redis at once.
SHARE_S: Final = 0.05
#: The most keys with a bucket here; beyond it all buckets are dropped.
BUCKETS_MAX: Final = 10_000


class _Bucket:
    """The part of one key's rate that this process holds."""

    __slots__ = ("empty_until", "lock", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.empty_until = 0.0
        self.lock = asyncio.Lock()


class RateLimiter:
    """Limits the requests and the jobs of API keys."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._buckets: dict[str, _Bucket] = {}

    async def spend(self, caller: Caller, count: int) -> tuple[int, float]:
        """Take `count` requests of a key's rate; raise BrokerError if Redis does not answer.

        Returns:
            How many of them the rate allows now, and the seconds until it allows more.
        """
        if not caller.rate or not count:
            return count, 0.0
        bucket = self._bucket(caller)
        # Concurrent requests share what the first of them fetches.
        async with bucket.lock:
            if bucket.tokens < count:
                await self._fetch(bucket, caller, count)
            taken = min(bucket.tokens, count)
            bucket.tokens -= taken
            return taken, max(0.0, bucket.empty_until - time.monotonic())

    async def spend_all(self, caller: Caller, count: int) -> None:
        """Take `count` requests of a key's rate, fewer than its `rate_burst`, or none.

        Raises:
            RateLimited: the rate does not allow all of them now.
            BrokerError: Redis does not answer.
        """
        if not caller.rate or not count:
            return
        bucket = self._bucket(caller)
        async with bucket.lock:
            missing = count - bucket.tokens
            if missing > 0:
                taken, wait_s = await self._queue.take_tokens(
                    caller.key_id, caller.rate, missing, missing
                )
                if not taken:
                    # The next try is a request too.
                    raise rate_limited(caller, wait_s + 1 / caller.rate)
                bucket.tokens += taken
            bucket.tokens -= count

    def _bucket(self, caller: Caller) -> _Bucket:
        bucket = self._buckets.get(caller.key_id)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets.clear()
            bucket = self._buckets[caller.key_id] = _Bucket()
        return bucket

    async def _fetch(self, bucket: _Bucket, caller: Caller, count: int) -> None:
        now = time.monotonic()
        if now < bucket.empty_until:
            return
        wanted = max(count - bucket.tokens, math.ceil(caller.rate * SHARE_S))
        taken, wait_s = await self._queue.take_tokens(caller.key_id, caller.rate, wanted, 1)
        bucket.tokens += taken
        bucket.empty_until = now + wait_s


def rate_limited(caller: Caller, wait_s: float) -> RateLimited:
    """Return the error for a key that makes more requests than its rate."""
    return RateLimited(
        f"API key {caller.key_id} exceeds its rate of {caller.rate:g} requests and jobs a second",
        hint="Send more slowly: each job counts. An operator can create a key with a higher rate.",
        retry_after_s=max(1, math.ceil(wait_s)),
    )
