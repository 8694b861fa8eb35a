"""Clients of Redis from a URL, with the same options in every process.

Retries are off. By default redis-py repeats a command that timed out up to ten times, and a hidden
repeat could claim a job twice. Callers repeat a command themselves where that is safe.
"""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

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

from headrace.errors import ConfigError
from headrace.redis.fast_connection import use_fast_connections

SOCKET_TIMEOUT_S: Final = 5.0
SCHEMES: Final = ("redis", "rediss", "unix", "sentinel")
SENTINEL_PORT: Final = 26379

_SECRET_IN_QUERY = re.compile(r"([?&](?:sentinel_)?password=)[^&#]*")
_FORMS = (
    "redis://[:password@]host:6379/0, rediss://..., unix:///path/to/redis.sock or "
    "sentinel://[:password@]host:26379,host2:26379/0?master=name"
)


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """The parts of a sentinel:// URL.

    Attributes:
        master: the name under which the Sentinels know the Redis server.
        username: the Redis server's user; empty for the default user.
        password: the Redis server's password; empty for none.
        sentinel_password: the Sentinels' own password; empty for none.
    """

    hosts: tuple[tuple[str, int], ...]
    master: str
    db: int
    username: str = ""
    password: str = field(default="", repr=False)
    sentinel_password: str = field(default="", repr=False)


def redact_url(url: str) -> str:
    """Return the URL with `***` for its password, for messages and logs.

    A password that was not percent-encoded may hold `/` or `@`, so everything up to the last `@`
    counts as user and password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        # Not a URL: it may be a bare password or a host.
        return "***" if "@" in url else url
    address, mark, query = rest.partition("?")
    userinfo, at, host = address.rpartition("@")
    if not at and "@" in query:
        # An unencoded `?` in the password.
        query = query.rpartition("@")[2]
        return f"{scheme}://***@{query}"
    user, colon, _ = userinfo.partition(":")
    secret = f"{user}{colon}***" if colon else user
    return _SECRET_IN_QUERY.sub(r"\1***", f"{scheme}://{secret}{at}{host}{mark}{query}")


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
    if _split(url).scheme == "sentinel":
        address = parse_sentinel(url)
        sentinel = sentinel_kind(address.hosts, sentinel_kwargs=_sentinel_kwargs(address, kwargs))
        return sentinel.master_for(
            address.master, connection_pool_class=pool, **_master_kwargs(address, kwargs)
        )
    try:
        client = kind.from_url(url, **kwargs)
    except ValueError:
        raise _unreadable(url) from None
    _check_options(client.connection_pool, url)
    return client


async def drop_connections(client: redis.asyncio.Redis, *, idle: bool) -> None:
    """Close the connections of a pool, so that the next command makes a new one.

    Args:
        client: the owner of the pool.
        idle: close only those that are not in use. After a connection went silent, idle ones may
            be as dead, and each would cost one caller the time limit of a reply.
    """
    with contextlib.suppress(RedisError, OSError):
        await client.connection_pool.disconnect(inuse_connections=not idle)


def parse_sentinel(url: str) -> SentinelAddress:
    """Read `sentinel://[[user]:password@]host[:26379][,host2...][/db]?master=name`.

    The password is the Redis server's; the Sentinels' own, if they have one, is
    `&sentinel_password=`.

    Raises:
        ConfigError: a part is missing or wrong.
    """
    parts = _split(url)
    query = parse_qs(parts.query)
    master = query.get("master", [""])[0]
    if parts.scheme != "sentinel" or not master:
        raise ConfigError(
            f"Redis URL {redact_url(url)}: the name of the master is missing",
            hint="write sentinel://host:26379,host2:26379/0?master=name",
        )
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    try:
        return SentinelAddress(
            hosts=tuple(_host_port(item) for item in hosts.split(",")),
            master=master,
            db=int(parts.path.strip("/") or 0),
            username=unquote(user),
            password=unquote(password),
            sentinel_password=query.get("sentinel_password", [""])[0],
        )
    except ValueError:
        raise _unreadable(url) from None


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


def _check_options(pool: Any, url: str) -> None:
    """Make a connection object and drop it: redis-py rejects unknown options only then.

    Raises:
        ConfigError: the URL has an unknown option, or an option for TLS without TLS.
    """
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        found = re.search(r"'(\w+)'$", str(error))
        if found is None:
            raise
        raise ConfigError(
            f"Redis URL {redact_url(url)!r}: unknown option {found[1]!r}",
            hint="correct it; options that begin with ssl_ are for rediss://",
        ) from None


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _unreadable(url) from None
    if parts.scheme not in SCHEMES:
        raise _unreadable(url)
    return parts


def _host_port(item: str) -> tuple[str, int]:
    parts = urlsplit(f"//{item.strip()}")
    if not parts.hostname:
        raise ValueError(item)
    return parts.hostname, parts.port or SENTINEL_PORT


@functools.cache
def _driver() -> DriverInfo:
    """Return redis-py's own version data, which it would otherwise read for each connection."""
    return DriverInfo()


def _defaults() -> dict[str, Any]:
    return {
        "protocol": 3,
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": SOCKET_TIMEOUT_S,
        # redis-py requests these on every RESP3 connection: a round trip for one vendor's service.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        "driver_info": _driver(),
    }


def _sentinel_kwargs(address: SentinelAddress, kwargs: dict[str, Any]) -> dict[str, Any]:
    # A Sentinel that is down must cost little time: the next one is tried.
    return {
        "protocol": 3,
        "socket_timeout": kwargs["socket_timeout"] and min(kwargs["socket_timeout"], 1.0),
        "socket_connect_timeout": 1.0,
        "retry": kwargs["retry"],
        "maint_notifications_config": kwargs["maint_notifications_config"],
        **({"password": address.sentinel_password} if address.sentinel_password else {}),
    }


def _master_kwargs(address: SentinelAddress, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {
        "db": address.db,
        **({"username": address.username} if address.username else {}),
        **({"password": address.password} if address.password else {}),
        **kwargs,
    }


def _unreadable(url: str) -> ConfigError:
    return ConfigError(f"Redis URL {redact_url(url)!r} cannot be read", hint=f"write {_FORMS}")
