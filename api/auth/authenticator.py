"""Authenticate each request by its API key, before its body is read. Disabled unless `auth` is on.

Keys are cached for FRESH_S seconds, so most requests cost a hash and a comparison. Redis publishes
a revocation, and the key leaves the cache at once. If the connection was lost, the key leaves it
FRESH_S seconds later at most. While Redis does not answer, cached keys stay valid for STALE_S
seconds. The operation itself then answers with the problem `broker-unavailable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from enum import Enum
from typing import Final

from api.auth.rate_limit import RateLimiter, rate_limited
from api.http.messages import Request
from headrace.access.api_key import NO_OWNER, ApiKey, Caller, Scope, caller_of, read_key
from headrace.access.key_store import AsyncApiKeyStore
from headrace.config.settings import Settings
from headrace.errors import BrokerError, Forbidden, Unauthorized
from headrace.queue.asyncio_tasks import RunningTasks, cancel_and_wait
from headrace.queue.following.subscription import Subscription
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys

logger = logging.getLogger(__name__)

FRESH_S: Final = 5.0
STALE_S: Final = 300.0
#: Seconds for which an unknown key is cached.
UNKNOWN_S: Final = 1.0
#: A key's use is saved at most this often by each API process.
USED_S: Final = 60.0
#: The most cached keys; beyond it the cache is cleared.
CACHED_MAX: Final = 10_000
#: The header in which a component of the deployment names the key for which it acts.
ACTS_FOR: Final = b"headrace-acts-for"

_HOW: Final = (
    "Send `Authorization: Bearer hr_…` or `X-API-Key: hr_…`; an operator makes keys with "
    "`headrace keys create`."
)


class Open(Enum):
    """Operations that need no API key, need one only by a setting, or need any."""

    ALWAYS = "open"
    ANY_KEY = "any API key"
    METRICS = "open unless auth_metrics"
    DOCS = "open unless auth_docs"


#: What an operation requires of its caller.
Needs = Scope | Open


def open_operations(settings: Settings) -> set[Needs]:
    """Return what the settings leave open to requests without an API key or a token."""
    metrics = set() if settings.auth_metrics else {Open.METRICS}
    docs = set() if settings.auth_docs else {Open.DOCS}
    return {Open.ALWAYS, *metrics, *docs}


class _CachedKey:
    """A key as it was read from Redis, with its caller; `known` is None if it does not exist."""

    __slots__ = ("known", "read_at")

    def __init__(self, key: ApiKey | None, read_at: float) -> None:
        self.known = None if key is None else (key, caller_of(key))
        self.read_at = read_at


class Authenticator:
    """Authenticates the requests of one API process."""

    def __init__(self, settings: Settings, queue: JobQueue, subscription: Subscription) -> None:
        self._open = open_operations(settings)
        self._queue = queue
        self.rates = RateLimiter(queue)
        self._cache: dict[str, _CachedKey] = {}
        self._reading: dict[str, asyncio.Task[_CachedKey]] = {}
        self._used: dict[str, float] = {}
        self._writing = RunningTasks()
        self._store = AsyncApiKeyStore(queue)
        subscription.add(
            self._forget,
            keys.API_KEY_CHANGES,
            on_reconnect=self._missed_changes,
            on_lost=self._expire_all,
        )

    async def admit(self, request: Request, needs: Needs | None) -> None:
        """Set the `caller` of a request, or refuse it.

        Args:
            needs: what its operation requires; None for any key, as for an unknown path.

        Raises:
            Unauthorized: the request has no valid key.
            Forbidden: the key lacks the required scope.
            RateLimited: the key makes more requests than its rate.
            BrokerError: Redis does not answer, and the key is not cached.
        """
        if needs in self._open:
            return
        key, caller = await self._authenticate(request)
        if request.has(ACTS_FOR) and key.acts:
            key, caller = await self._owner(request)
        elif key.rate:
            taken, wait_s = await self.rates.spend(caller, 1)
            if not taken:
                raise rate_limited(caller, wait_s)
        if needs is not None and needs not in key.scopes and not isinstance(needs, Open):
            raise Forbidden(
                f"API key {key.id} lacks the required scope {needs.value!r}",
                hint="An operator makes keys with it: `headrace keys create --scope …`.",
            )
        request.caller = caller

    async def still_admits(self, caller: Caller) -> bool:
        """Return whether the caller's key is still valid; True while Redis does not answer."""
        if not caller.key_id:
            return True
        try:
            known = (await self._look_up(caller.key_id)).known
        except BrokerError:
            return True
        return known is not None and not known[0].expired(time.time())

    async def _authenticate(self, request: Request) -> tuple[ApiKey, Caller]:
        text = _presented(request)
        if not text:
            raise Unauthorized(
                "the request has no API key, and this operation requires one", hint=_HOW
            )
        presented = read_key(text)
        if presented is None:
            raise Unauthorized("the API key is not valid: the form is hr_<id>_<secret>", hint=_HOW)
        known = (await self._look_up(presented.id)).known
        now_s = time.time()
        if known is None or not known[0].is_secret(presented.secret, now_s):
            raise Unauthorized("the API key is unknown", hint=_HOW)
        if known[0].expired(now_s):
            raise Unauthorized(f"the API key {known[0].id} has expired", hint=_HOW)
        if now_s - self._used.get(presented.id, 0.0) >= USED_S:
            if len(self._used) >= CACHED_MAX:
                self._used.clear()
            self._used[presented.id] = now_s
            self._writing.begin(self._save_use(presented.id))
        return known

    async def _save_use(self, key_id: str) -> None:
        with contextlib.suppress(BrokerError):  # the next use is saved
            await self._store.note_use(key_id)

    async def stop(self) -> None:
        """End what it writes."""
        await cancel_and_wait(*self._writing)

    async def _owner(self, request: Request) -> tuple[ApiKey, Caller]:
        """Return the key for which a component acts, with its scopes and limits."""
        owner = request.header(ACTS_FOR).decode("latin-1")
        if owner == NO_OWNER:
            # Work that was submitted without API keys continues without an owner.
            key, _ = await self._authenticate(request)
            return key, Caller(key_id="", sees_all=False)
        known = (await self._look_up(owner)).known
        if known is None or known[0].expired(time.time()):
            raise Unauthorized(
                f"the API key {owner[:64]!r}, which owns this work, is no longer valid",
                hint="It was revoked or has expired: its work ends here.",
            )
        return known

    async def _look_up(self, key_id: str) -> _CachedKey:
        cached, now = self._cache.get(key_id), time.monotonic()
        if cached is not None:
            limit_s = FRESH_S if cached.known else UNKNOWN_S
            if now - cached.read_at <= limit_s:
                return cached
        reading = self._reading.get(key_id) or self._begin_reading(key_id)
        try:
            return await asyncio.shield(reading)
        except BrokerError:
            if cached is None or not cached.known or now - cached.read_at > STALE_S:
                raise
            return cached

    def _begin_reading(self, key_id: str) -> asyncio.Task[_CachedKey]:
        reading = asyncio.create_task(self._read(key_id))
        self._reading[key_id] = reading

        def over(task: asyncio.Task[_CachedKey]) -> None:
            if self._reading.get(key_id) is task:
                del self._reading[key_id]
            if not task.cancelled():
                # Maybe no request waits for it any more, and asyncio would log its error.
                task.exception()

        reading.add_done_callback(over)
        return reading

    async def _read(self, key_id: str) -> _CachedKey:
        read_at = time.monotonic()
        cached = _CachedKey(await self._queue.api_key(key_id), read_at)
        if len(self._cache) >= CACHED_MAX:
            self._cache.clear()
        # If the key has changed meanwhile, `_forget` has removed this task.
        if asyncio.current_task() is self._reading.get(key_id):
            self._cache[key_id] = cached
        return cached

    def _forget(self, _: str, data: bytes) -> None:
        key_id = data.decode("utf-8", "replace")
        self._cache.pop(key_id, None)
        # A read that has begun may return the key as it was before.
        self._reading.pop(key_id, None)

    def _missed_changes(self) -> None:
        """Let every key be read again, also those that are being read."""
        self._expire_all()
        self._reading.clear()

    def _expire_all(self) -> None:
        """Let every key be read again; without Redis it stays valid for STALE_S seconds."""
        long_ago = time.monotonic() - FRESH_S - UNKNOWN_S
        for cached in self._cache.values():
            cached.read_at = min(cached.read_at, long_ago)


def _presented(request: Request) -> str:
    """Return the API key of a request as text; "" if it has none."""
    authorization = request.header(b"authorization")
    if authorization[:7].lower() == b"bearer ":
        return authorization[7:].strip().decode("latin-1")
    return request.header(b"x-api-key").strip().decode("latin-1")
