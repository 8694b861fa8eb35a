"""Asks who is there, where API keys are asked for: once a request, before anything else reads it.

What Redis says of a key is kept for some seconds, so that a request costs a hash and a comparison.
A revocation is published and forgets the key at once; where it was not heard, as the connection was
lost, those seconds bound it. While Redis is away, keys that were known go on for STALE_S: the
request finds out by itself, and can be told more than "who are you?".
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Final

import redis.asyncio

from api.auth.scopes import Needs, Open
from api.http.messages import Request
from headrace.access.api_key import NOBODY, ApiKey, Caller, caller_of, read_key
from headrace.config.settings import Settings
from headrace.errors import BrokerError, Forbidden, RateLimited, Unauthorized
from headrace.queue.job_queue import JobQueue
from headrace.queue.subscription import Subscription
from headrace.redis import keys

logger = logging.getLogger(__name__)

FRESH_S: Final = 5.0
STALE_S: Final = 300.0
#: A key that there is none of is asked for again after so long.
UNKNOWN_S: Final = 1.0
#: So many keys are kept; then all are asked for again.
KEPT_MAX: Final = 10_000
#: A process takes so many seconds' worth of a key's rate at once.
SHARE_S: Final = 0.05
#: A part of the deployment says for whom it acts.
ACTS_FOR: Final = b"headrace-acts-for"

_HOW: Final = (
    "Send `Authorization: Bearer hr_…` or `X-API-Key: hr_…`; an operator makes keys with "
    "`headrace keys create`."
)


class _CachedKey:
    """What is known of one id."""

    __slots__ = ("caller", "key", "read_at")

    def __init__(self, key: ApiKey | None, read_at: float) -> None:
        self.key = key
        self.caller = caller_of(key) if key is not None else None
        self.read_at = read_at


class _Bucket:
    """What this process holds of one key's rate."""

    __slots__ = ("empty_until", "lock", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.empty_until = 0.0
        self.lock = asyncio.Lock()


class Authenticator:
    """The door of one API process.

    Args:
        settings: which routes are open.
        queue: asks Redis.
        client: its pubsub connection is taken from this client's pool.
    """

    def __init__(self, settings: Settings, queue: JobQueue, client: redis.asyncio.Redis) -> None:
        self._open = {Open.ALWAYS}
        if not settings.auth_metrics:
            self._open.add(Open.METRICS)
        if not settings.auth_docs:
            self._open.add(Open.DOCS)
        self._queue = queue
        self._kept: dict[str, _CachedKey] = {}
        self._reading: dict[str, asyncio.Task[_CachedKey]] = {}
        self._buckets: dict[str, _Bucket] = {}
        self._subscription = Subscription(
            client,
            "API key",
            [keys.API_KEY_NEWS],
            self._forget,
            on_reconnect=self._forget_all,
            on_lost=self._expire_all,
        )

    async def start(self) -> None:
        """Begin to listen for keys that are made or revoked, in the background."""
        self._subscription.start()

    async def stop(self) -> None:
        """Listen no more."""
        await self._subscription.stop()

    async def admit(self, request: Request, needs: Needs | None, *, listed: bool = True) -> None:
        """Say on whose behalf a request is, in its `caller`, or refuse it.

        Args:
            request: its headers are read, and nothing else.
            needs: what its route wants; None for any key, as where there is no such route.
            listed: whether its route stands in the table; what does not is nobody's.

        Raises:
            Unauthorized: it has no key, or one that is none.
            Forbidden: the key is not for that.
            RateLimited: it makes more requests than it may.
            BrokerError: Redis does not answer, and the key is not known here.
        """
        if needs in self._open:
            return
        kept = await self._known(request)
        key, caller = kept.key, kept.caller
        assert key is not None  # noqa: S101 - _known gives no other
        assert caller is not None  # noqa: S101
        if request.has(ACTS_FOR) and key.acts:
            key, caller = await self._owner(request)
        elif key.rate:
            await self._spend_one(caller)
        if not listed:
            raise Forbidden(
                "no key is for this route: it does not say which scope it wants",
                hint="A route must stand in api/auth/scopes.py.",
            )
        if needs is not None and needs not in key.scopes and not isinstance(needs, Open):
            raise Forbidden(
                f"the API key {key.id} has not the scope {needs.value!r} that this route wants",
                hint="An operator makes keys with it: `headrace keys create --scope …`.",
            )
        request.caller = caller

    async def still_admits(self, caller: Caller) -> bool:
        """Whether what began on somebody's behalf may go on; yes, while Redis does not say."""
        if not caller.key_id:
            return True
        try:
            key = (await self._look_up(caller.key_id)).key
        except BrokerError:
            return True
        return key is not None and not key.expired(time.time())

    async def spend(self, caller: Caller, count: int) -> tuple[int, float]:
        """Take of a key's rate; how many of `count` there were, and seconds until there is more.

        Raises:
            BrokerError: Redis does not answer.
        """
        if not caller.rate or not count:
            return count, 0.0
        bucket = self._buckets.get(caller.key_id)
        if bucket is None:
            if len(self._buckets) >= KEPT_MAX:
                self._buckets.clear()
            bucket = self._buckets[caller.key_id] = _Bucket()
        # Who is late finds what the first of them has fetched.
        async with bucket.lock:
            if bucket.tokens < count:
                await self._fetch(bucket, caller, count)
            taken = min(bucket.tokens, count)
            bucket.tokens -= taken
            return taken, max(0.0, bucket.empty_until - time.monotonic())

    async def _fetch(self, bucket: _Bucket, caller: Caller, count: int) -> None:
        now = time.monotonic()
        if now < bucket.empty_until:
            return
        share = math.ceil(caller.rate * SHARE_S)
        wanted = max(count - bucket.tokens, share)
        taken, wait_s = await self._queue.take_tokens(caller.key_id, caller.rate, wanted, 1)
        bucket.tokens += taken
        bucket.empty_until = now + wait_s

    async def _spend_one(self, caller: Caller) -> None:
        taken, wait_s = await self.spend(caller, 1)
        if not taken:
            raise rate_limited(caller, wait_s)

    async def _known(self, request: Request) -> _CachedKey:
        text = _presented(request)
        if not text:
            raise Unauthorized("the request has no API key, and this route wants one", hint=_HOW)
        presented = read_key(text)
        if presented is None:
            raise Unauthorized("what was sent as API key is none", hint=_HOW)
        kept = await self._look_up(presented.id)
        key = kept.key
        now_s = time.time()
        if key is None or not key.is_secret(presented.secret, now_s):
            raise Unauthorized("there is no such API key", hint=_HOW)
        if key.expired(now_s):
            raise Unauthorized(f"the API key {key.id} has expired", hint=_HOW)
        return kept

    async def _owner(self, request: Request) -> tuple[ApiKey, Caller]:
        """The key that a part of the deployment acts for, with its scopes and limits."""
        owner = request.header(ACTS_FOR).decode("latin-1")
        kept = await self._look_up(owner) if owner != NOBODY else None
        if kept is None:
            # What was submitted while no keys were asked for is nobody's, and goes on as such.
            own = await self._known(request)
            assert own.key is not None  # noqa: S101 - _known gives no other
            return own.key, Caller(key_id="", sees_all=False)
        if kept.key is None or kept.caller is None or kept.key.expired(time.time()):
            raise Unauthorized(
                f"the API key {owner[:64]!r}, on whose behalf this is, is none any more",
                hint="It was revoked, or has expired: what it has begun ends here.",
            )
        return kept.key, kept.caller

    async def _look_up(self, key_id: str) -> _CachedKey:
        kept, now = self._kept.get(key_id), time.monotonic()
        if kept is not None:
            limit_s = FRESH_S if kept.key is not None else UNKNOWN_S
            if now - kept.read_at <= limit_s:
                return kept
        reading = self._reading.get(key_id) or self._begin_reading(key_id)
        try:
            return await asyncio.shield(reading)
        except BrokerError:
            if kept is None or kept.key is None or now - kept.read_at > STALE_S:
                raise
            return kept

    def _begin_reading(self, key_id: str) -> asyncio.Task[_CachedKey]:
        reading = asyncio.create_task(self._read(key_id))
        self._reading[key_id] = reading

        def over(task: asyncio.Task[_CachedKey]) -> None:
            if self._reading.get(key_id) is task:
                del self._reading[key_id]
            if not task.cancelled():
                # Whoever asked may have hung up, and nobody else is to wonder about its error.
                task.exception()

        reading.add_done_callback(over)
        return reading

    async def _read(self, key_id: str) -> _CachedKey:
        asked_at = time.monotonic()
        kept = _CachedKey(await self._queue.api_key(key_id), asked_at)
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        # What is heard of it meanwhile is newer; see _forget.
        if asyncio.current_task() is self._reading.get(key_id):
            self._kept[key_id] = kept
        return kept

    def _forget(self, _: str, data: bytes) -> None:
        key_id = data.decode("utf-8", "replace")
        self._kept.pop(key_id, None)
        # What is on its way may have been read before.
        self._reading.pop(key_id, None)

    def _forget_all(self) -> None:
        self._kept.clear()
        self._reading.clear()

    def _expire_all(self) -> None:
        """Every key is to be asked for again; where Redis is away it may stand on for STALE_S."""
        long_ago = time.monotonic() - FRESH_S - UNKNOWN_S
        for kept in self._kept.values():
            kept.read_at = min(kept.read_at, long_ago)


def rate_limited(caller: Caller, wait_s: float) -> RateLimited:
    """The error where a key makes more requests than it may."""
    return RateLimited(
        f"the API key {caller.key_id} may make {caller.rate:g} requests a second",
        hint="Send more slowly, or several jobs a request; an operator may raise the rate.",
        retry_after_s=max(1, math.ceil(wait_s)),
    )


def _presented(request: Request) -> str:
    """The key of a request; "" where it has none."""
    authorization = request.header(b"authorization")
    if authorization[:7].lower() == b"bearer ":
        return authorization[7:].strip().decode("latin-1")
    return request.header(b"x-api-key").strip().decode("latin-1")
