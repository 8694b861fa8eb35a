"""Clients of Redis from a URL, with the same options in every process.

Retries are off. By default redis-py repeats a command that timed out up to ten times, and a hidden
repeat could claim a job twice. Callers repeat a command themselves where that is safe.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Final

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelPool
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool
from typing_extensions import override

from headrace.redis.fast_connection import use_fast_connections
from headrace.redis.url import RedisUrl, read_url

SOCKET_TIMEOUT_S: Final = 5.0


def connect(url: str, **options: Any) -> redis.Redis:
    """Return a client for a redis://, rediss://, unix:// or sentinel:// URL.

    It connects at its first use. Options of redis-py override the defaults here.

    Raises:
        ConfigError: the URL cannot be read.
    """
    kwargs = {**_defaults(), "retry": Retry(NoBackoff(), 0), **options}
    client: redis.Redis = _client(url, redis.Redis, Sentinel, _Pool, kwargs)
    return client


def connect_async(url: str, **options: Any) -> redis.asyncio.Redis:
    """Return an asyncio client; arguments and errors are those of `connect`."""
    kwargs = {**_defaults(), "retry": AsyncRetry(NoBackoff(), 0), **options}
    client: redis.asyncio.Redis = _client(
        url, redis.asyncio.Redis, AsyncSentinel, _AsyncPool, kwargs
    )
    use_fast_connections(client)
    return client


def _client(url: str, kind: Any, sentinel_kind: Any, pool: Any, kwargs: dict[str, Any]) -> Any:
    """Return a client of a class of redis-py, blocking or asyncio."""
    address = read_url(url)
    if address.master:
        sentinel = sentinel_kind(address.hosts, sentinel_kwargs=_sentinel_kwargs(address, kwargs))
        return sentinel.master_for(
            address.master, connection_pool_class=pool, **_master_kwargs(address, kwargs)
        )
    return kind.from_url(address.text, **kwargs)


async def drop_connections(client: redis.asyncio.Redis, *, idle: bool) -> None:
    """Close the connections of a client's pool, so that the next command makes a new one.

    Args:
        idle: close only those that are not in use. After a connection went silent, idle ones may
            be as dead, and each would cost one caller the time limit of a reply.
    """
    with contextlib.suppress(RedisError, OSError):
        await client.connection_pool.disconnect(inuse_connections=not idle)


class _Pool(SentinelConnectionPool):
    """Also closes the connections to the Sentinels, which redis-py leaves open."""

    @override
    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        if inuse_connections:
            self.sentinel_manager.close()


class _AsyncPool(AsyncSentinelPool):
    """The same as `_Pool`, for asyncio."""

    @override
    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:
            await self.sentinel_manager.aclose()


@functools.cache
def _defaults() -> dict[str, Any]:
    return {
        "protocol": 3,
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": SOCKET_TIMEOUT_S,
        # redis-py requests these on every RESP3 connection: a round trip for one vendor's service.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        # Its own version data, which it would otherwise read for each connection.
        "driver_info": DriverInfo(),
    }


def _sentinel_kwargs(address: RedisUrl, kwargs: dict[str, Any]) -> dict[str, Any]:
    # A Sentinel that is down must cost little time: the next one is tried.
    return {
        "protocol": 3,
        "socket_timeout": kwargs["socket_timeout"] and min(kwargs["socket_timeout"], 1.0),
        "socket_connect_timeout": 1.0,
        "retry": kwargs["retry"],
        "maint_notifications_config": kwargs["maint_notifications_config"],
        **({"password": address.sentinel_password} if address.sentinel_password else {}),
    }


def _master_kwargs(address: RedisUrl, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {
        "db": address.db,
        **({"username": address.username} if address.username else {}),
        **({"password": address.password} if address.password else {}),
        **kwargs,
    }
