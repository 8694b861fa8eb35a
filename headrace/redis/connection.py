"""Connections to Redis, the same for every part: one URL in, a client out.

Retries are off. redis-py repeats a command that timed out up to ten times by default, and a repeat
that nobody knows of is how a job is claimed twice; who can say a command twice does so himself.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import redis
import redis.asyncio
from hiredis import PushNotification
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelPool
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool
from typing_extensions import override

from headrace.errors import ConfigError
from headrace.redis.traffic import TRAFFIC

SOCKET_TIMEOUT_S: Final = 5.0
#: Up to so many unsent bytes a connection is sent more without a wait: asyncio bears 64 KiB.
AT_ONCE_MAX_BYTES: Final = 32 * 1024
SCHEMES: Final = ("redis", "rediss", "unix", "sentinel")
SENTINEL_PORT: Final = 26379

_SECRET_IN_QUERY = re.compile(r"([?&](?:sentinel_)?password=)[^&#]*")
_FORMS = (
    "redis://[:password@]host:6379/0, rediss://..., unix:///path/to/redis.sock or "
    "sentinel://[:password@]host:26379,host2:26379/0?master=name"
)


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """What a sentinel:// URL says.

    Attributes:
        hosts: host and port of each Sentinel.
        master: the name under which the Sentinels know the Redis server.
        db: the database.
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
    """The URL with `***` for its password, for messages and logs.

    A password that was not percent-encoded may hold `/` or `@`, so that all up to the last `@`
    counts as user and password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        # Not a URL; it may be a bare password or host, and there is no telling which.
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
    """A client for a redis://, rediss://, unix:// or sentinel:// URL. It connects when first used.

    Args:
        url: where Redis is.
        options: redis-py's own connection options; they win over the defaults here.

    Raises:
        ConfigError: the URL cannot be read.
    """
    kwargs = {**_defaults(), "retry": Retry(NoBackoff(), 0), **options}
    if _split(url).scheme == "sentinel":
        address = parse_sentinel(url)
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            address.hosts, sentinel_kwargs=_sentinel_kwargs(address, kwargs)
        )
        client: redis.Redis = sentinel.master_for(  # type: ignore[no-untyped-call]
            address.master, connection_pool_class=_Pool, **_master_kwargs(address, kwargs)
        )
        return client
    try:
        plain = redis.Redis.from_url(url, **kwargs)
    except ValueError:
        raise _unreadable(url) from None
    _check_options(plain.connection_pool, url)
    return plain


def connect_async(url: str, **options: Any) -> redis.asyncio.Redis:
    """The asyncio client for a URL that `connect` takes.

    Args:
        url: where Redis is.
        options: redis-py's own connection options; they win over the defaults here.

    Raises:
        ConfigError: the URL cannot be read.
    """
    kwargs = {**_defaults(), "retry": AsyncRetry(NoBackoff(), 0), **options}
    if _split(url).scheme == "sentinel":
        address = parse_sentinel(url)
        sentinel = AsyncSentinel(  # type: ignore[no-untyped-call]
            address.hosts, sentinel_kwargs=_sentinel_kwargs(address, kwargs)
        )
        client: redis.asyncio.Redis = sentinel.master_for(
            address.master, connection_pool_class=_AsyncPool, **_master_kwargs(address, kwargs)
        )
    else:
        try:
            client = redis.asyncio.Redis.from_url(url, **kwargs)
        except ValueError:
            raise _unreadable(url) from None
        _check_options(client.connection_pool, url)
    pool = client.connection_pool
    pool.connection_class = type("Connection", (_Sends, pool.connection_class), {})
    return client


async def connection_of(client: redis.asyncio.Redis) -> Any:
    """A connection of a client's pool, to be released to it.

    One that is idle and in order is taken without redis-py's ten coroutines for that.

    Raises:
        RedisError: there is none, and Redis does not take one.
    """
    # redis-py has no type for what is in a pool.
    pool: Any = client.connection_pool
    idle = pool._available_connections
    if idle and isinstance(idle[-1], _Sends) and idle[-1].in_order:
        connection = idle.pop()
        pool._in_use_connections.add(connection)
        return connection
    return await pool.get_connection()


async def drop_connections(client: redis.asyncio.Redis, *, idle: bool) -> None:
    """Close the connections of a pool, so that whoever asks next connects anew.

    Args:
        client: whose pool it is.
        idle: only those that nobody uses now. After a connection that went silent these may be as
            dead, and each would cost somebody the time limit of an answer.
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


class _Sends(AbstractConnection):
    """Counts what it sends, and says that it is lost where uvloop has closed its socket.

    What is short is sent at once: redis-py makes a task of each send, for its time limit, and two
    turns of the event loop go by before it leaves.
    """

    @override
    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        TRAFFIC.round_trips += 1
        try:
            if not self._sent_at_once(command):
                await super().send_packed_command(command, check_health)
        except RuntimeError as error:
            raise RedisConnectionError(f"the connection was lost: {error}") from error

    def _sent_at_once(self, command: bytes | str | Iterable[bytes]) -> bool:
        """Whether the command was short enough to leave, or be buffered, without a wait."""
        # redis-py types neither, and has none of them while it is not connected.
        reader: Any = self._reader
        writer: Any = self._writer
        if writer is None or reader is None or self.health_check_interval:
            return False
        if not isinstance(command, bytes) or reader.exception() or writer.is_closing():
            return False
        unsent = writer.transport.get_write_buffer_size()
        if unsent + len(command) > AT_ONCE_MAX_BYTES:
            return False
        writer.write(command)
        return True

    @property
    def in_order(self) -> bool:
        """Whether it is connected and nothing has come that nobody has read, not even its end."""
        # As redis-py's `can_read` of the parser has it.
        parser: Any = self._parser
        stream: Any = self._reader
        if not self.is_connected or not parser._connected or stream.at_eof():
            return False
        return not (parser._reader.has_data() or stream._buffer)

    async def read_replies(self, count: int) -> list[Any]:
        """So many replies, with an error at the place of its command. Whoever calls has a limit.

        `read_response` for each would be three coroutines where the parser has it lying there.

        Raises:
            redis.exceptions.RedisError: the connection was lost, or Redis is not ready.
        """
        replies: list[Any] = []
        while len(replies) < count:
            # Waits for what has not come yet; the parser then has many.
            try:
                replies.append(await self.read_response(timeout=math.inf))
            except ResponseError as error:
                replies.append(error)
            parser: Any = self._parser
            while len(replies) < count:
                reply = parser._reader.gets()
                if reply is NOT_ENOUGH_DATA:
                    break
                if isinstance(reply, PushNotification):
                    await parser.handle_push_response(reply)
                elif isinstance(reply, Exception) and not isinstance(reply, ResponseError):
                    raise reply
                else:
                    replies.append(reply)
        return replies


class _Pool(SentinelConnectionPool):
    """Closes the connections to the Sentinels with its own; redis-py leaves them open."""

    @override
    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        if inuse_connections:
            self.sentinel_manager.close()


class _AsyncPool(AsyncSentinelPool):
    """As `_Pool`, for asyncio."""

    @override
    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:
            await self.sentinel_manager.aclose()


def _check_options(pool: Any, url: str) -> None:
    """Make a connection that nobody uses: an option that there is none of fails at the first one.

    Raises:
        ConfigError: the URL has such an option, or one that is for TLS alone without TLS.
    """
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        found = re.search(r"'(\w+)'$", str(error))
        if found is None:
            raise
        raise ConfigError(
            f"Redis URL {redact_url(url)!r}: there is no option {found[1]!r}",
            hint="Correct it; those that begin with ssl_ are for rediss://.",
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
    """What Redis is told of redis-py, which else reads its own metadata for each connection."""
    return DriverInfo()


def _defaults() -> dict[str, Any]:
    return {
        "protocol": 3,
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": SOCKET_TIMEOUT_S,
        # Asked for by redis-py on every RESP3 connection: a round trip for a service of one vendor.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        "driver_info": _driver(),
    }


def _sentinel_kwargs(address: SentinelAddress, kwargs: dict[str, Any]) -> dict[str, Any]:
    # A Sentinel that is down must cost little: the next one is asked.
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
