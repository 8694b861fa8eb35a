"""What Headrace does with redis-py beyond its API, for speed. The only file that knows its insides.

Written against redis-py 8.0 and 8.1 (`redis>=8,<9`). `tests/unit/headrace/redis/
test_fast_connection.py` names each private part that is used here and fails if one goes.

redis-py runs three coroutines to read a reply; `read_replies` reads all that have arrived in one
loop. This saves 31 to 42 % of the client's CPU for 256 replies to one write, with redis-py 8.1
(`python -m benchmarks.job_path.pieces_cpu`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

import redis.asyncio
from hiredis import PushNotification, pack_command
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio.client import PubSub
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from typing_extensions import override

from headrace.redis.scripts import Command

#: Fields of `hr:stats:`; a colon and the part of the system follow.
ROUND_TRIPS: Final = "redis_round_trips"
ERRORS: Final = "redis_errors"


@dataclass(slots=True)
class Traffic:
    """Counts since the last `take`: writes to Redis, and exchanges that failed or were refused."""

    round_trips: int = 0
    errors: int = 0

    def take(self, part: str) -> dict[str, int]:
        """Return the counts as fields of `hr:stats:`, and reset them; part: `api` or `worker`."""
        taken = {f"{ROUND_TRIPS}:{part}": self.round_trips, f"{ERRORS}:{part}": self.errors}
        # Counts that another thread adds meanwhile stay for the next call.
        self.round_trips -= taken[f"{ROUND_TRIPS}:{part}"]
        self.errors -= taken[f"{ERRORS}:{part}"]
        return {name: count for name, count in taken.items() if count}


TRAFFIC: Final = Traffic()


#: Return a command as it is sent. The type stub of hiredis requires a tuple of one element.
pack: Final[Callable[[Command], bytes]] = pack_command  # type: ignore[assignment]


def pack_all(commands: Iterable[Command]) -> bytes:
    """Return commands as they are sent, one after another."""
    return b"".join(map(pack, commands))


class ConnectTimeout(RedisTimeoutError):
    """No connection could be made in time; a second attempt would only take as long again."""


class FastConnection(AbstractConnection):
    """A connection that counts its writes, and can read many replies.

    If uvloop has closed its socket, or another task has disconnected it meanwhile, it raises a
    ConnectionError instead of a RuntimeError or an AttributeError.
    """

    @override
    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        TRAFFIC.round_trips += 1
        try:
            await super().send_packed_command(command, check_health)
        except (RuntimeError, AttributeError) as error:
            if isinstance(error, AttributeError) and self._writer is not None:
                raise
            raise RedisConnectionError(f"the connection was lost: {error}") from error

    @property
    def in_order(self) -> bool:
        """Whether it is connected and has received nothing that is unread, not even its end."""
        # As `can_read` of redis-py's parser.
        parser: Any = self._parser
        stream: Any = self._reader
        if not self.is_connected or not parser._connected or stream.at_eof():
            return False
        return not (parser._reader.has_data() or stream._buffer)

    async def read_replies(self, count: int) -> list[Any]:
        """Read `count` replies, errors too, within the caller's time; or raise RedisError."""
        replies: list[Any] = []
        while len(replies) < count:
            # Waits for data; the parser may then hold many replies.
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


def use_fast_connections(client: redis.asyncio.Redis) -> None:
    """Let a new client make only connections that are fast."""
    pool = client.connection_pool
    pool.connection_class = type("Connection", (FastConnection, pool.connection_class), {})


async def take_connection(client: redis.asyncio.Redis) -> Any:
    """Take a connection of a client's pool, to release there; raise RedisError if it has none."""
    pool: Any = client.connection_pool  # redis-py does not type it
    try:
        return await pool.get_connection()
    except RedisTimeoutError as error:
        raise ConnectTimeout(str(error)) from error


async def exchange(client: redis.asyncio.Redis, commands: bytes, count: int) -> list[Any]:
    """Send `count` packed commands in one write; return their replies.

    An error takes the place of its reply.

    Raises:
        redis.exceptions.RedisError: Redis does not answer. Any of the commands may have run.
    """
    pool: Any = client.connection_pool
    connection = await take_connection(client)
    try:
        await connection.send_packed_command(commands)
        async with asyncio.timeout(connection.socket_timeout):
            return cast("list[Any]", await connection.read_replies(count))
    except TimeoutError as error:
        await connection.disconnect(nowait=True)
        raise RedisTimeoutError(f"no answer in {connection.socket_timeout:g} s") from error
    except BaseException:
        # The next user of this connection would read these replies.
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)


class NoReconnectPubSub(PubSub):
    """A pub/sub client that connects once; if its connection breaks, that is an error.

    redis-py would connect again in passing. A task that reads and a task that subscribes would then
    use one connection at the same time, and break each other's handshake.
    """

    @override
    async def connect(self) -> None:
        connection: Any = self.connection
        if connection is not None and not connection.is_connected:
            raise RedisConnectionError("the connection was lost")
        await super().connect()  # type: ignore[no-untyped-call]

    @override
    async def _reconnect(self, conn: Any, *_: Any, **__: Any) -> None:
        await conn.disconnect(nowait=True)


async def keep_push(push: Any) -> Any:
    """Return a push as it is; redis-py's own handler formats each for a log that is off."""
    return push


def socket_of(connection: Any) -> Any:
    """Return the socket of a blocking connection, for a selector."""
    return connection._sock


def set_push_handlers(
    connection: Any, invalidated: Callable[[Any], Any], published: Callable[[Any], Any]
) -> None:
    """Let a blocking connection hand invalidations and publications to these functions."""
    connection._parser.set_invalidation_push_handler(invalidated)
    connection._parser.set_pubsub_push_handler(published)
