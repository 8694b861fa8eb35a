"""Calls of scripts over one asyncio client, with errors as the tree's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import redis.asyncio
from hiredis import pack_command
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from headrace.redis import keys
from headrace.redis.connection import connection_of, drop_connections
from headrace.redis.outages import NO_PRIMARY, outage_code, translate
from headrace.redis.scripts import Arg, Command, script

# hiredis' own stub asks for a tuple of one.
_pack: Final[Callable[[Command], bytes]] = pack_command  # type: ignore[assignment]


class AsyncScriptClient:
    """Calls scripts.

    Args:
        client: the connections.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        # redis-py types its own replies as unions of all that a command could give.
        self._client: Any = client

    async def on_queue(self, name: str, queue: str, *arguments: Arg) -> Any:
        """Call a script that works on one queue, once: a repeat would be answered otherwise.

        Raises:
            BrokerError: Redis does not answer, and the outcome may be unknown; or it refuses.
        """
        return await self.on_keys(name, queue, queue, *arguments)

    async def on_keys(self, name: str, queue: str, *arguments: Arg) -> Any:
        """As `on_queue`, for a script that does not ask for the queue's name."""
        called = _pack(script(name).call(keys.queue_keys(queue), *arguments))
        try:
            return await self._evaluate(name, called)
        except RedisError as error:
            raise translate(error) from error

    async def once(self, name: str, *arguments: Arg) -> Any:
        """Call a script that works on no one queue, once.

        Raises:
            BrokerError: Redis does not answer, and the outcome may be unknown; or it refuses.
        """
        try:
            return await self._evaluate(name, _pack(script(name).call([], *arguments)))
        except RedisError as error:
            raise translate(error) from error

    async def _call(self, name: str, *arguments: Arg) -> list[Any]:
        """Call a script; once more after a broken connection, which all of these scripts allow."""
        called = _pack(script(name).call([], *arguments))
        try:
            try:
                return list(await self._evaluate(name, called))
            except (RedisConnectionError, RedisTimeoutError, ResponseError) as error:
                if isinstance(error, ResponseError) and outage_code(error) not in NO_PRIMARY:
                    raise
                if isinstance(error, _ConnectFailed):
                    raise
                return list(await self._evaluate(name, called))
        except RedisError as error:
            raise translate(error) from error

    async def _evaluate(self, name: str, called: bytes) -> Any:
        try:
            answer = await self._exchange(called)
        except NoScriptError:
            await self._exchange(_pack(script(name).load_command()))
            answer = await self._exchange(called)
        return answer

    async def _exchange(self, packed: bytes) -> Any:
        """One command on a connection of the pool, without the layers of `execute_command`."""
        pool = self._client.connection_pool
        try:
            connection = await connection_of(self._client)
        except RedisTimeoutError as error:
            raise _ConnectFailed(str(error)) from error
        try:
            await connection.send_packed_command(packed)
            answer = await connection.read_response()
        except ResponseError as error:
            if outage_code(error) in NO_PRIMARY:
                # Behind the same name there is another server by now.
                await drop_connections(self._client, idle=False)
            raise
        except BaseException as error:
            # Whoever took this connection next would read the answer to this command.
            await connection.disconnect(nowait=True)
            if isinstance(error, RedisTimeoutError):
                await drop_connections(self._client, idle=True)
            raise
        finally:
            await pool.release(connection)
        return answer


class _ConnectFailed(RedisTimeoutError):
    """Nobody takes a connection; to ask again at once would only take as long again."""
