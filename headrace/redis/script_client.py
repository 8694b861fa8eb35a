"""Clients that call scripts, blocking and asyncio. They raise the errors of `headrace.errors`.

A server that does not know a script (after a restart or a failover) replies NOSCRIPT. The clients
then load the script and call it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from headrace.redis.connection import drop_connections
from headrace.redis.fast_connection import ConnectTimeout, exchange, pack, pack_all
from headrace.redis.outages import NO_PRIMARY, outage_code, translate
from headrace.redis.scripts import Arg, Command, load_command


def call_script(client: redis.Redis, call: Command) -> Any:
    """Call a script once, with redis-py's own errors.

    Raises:
        redis.RedisError: Redis does not answer, and the outcome may be unknown; or it refuses.
    """
    execute: Any = client.execute_command
    try:
        return execute(*call)
    except NoScriptError:
        execute(*load_command(call))
        return execute(*call)


def _repeated(send: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Send something, a second time if the connection breaks."""
    try:
        try:
            return send(*arguments, **options)
        except (RedisConnectionError, RedisTimeoutError):
            return send(*arguments, **options)
    except RedisError as error:
        raise translate(error) from error


class ScriptClient:
    """Calls scripts and commands over a blocking client; any thread may use it.

    Everything is sent a second time if the connection breaks, so each call must allow a repeat.
    All methods raise a BrokerError if Redis does not answer, or refuses.
    """

    def __init__(self, client: redis.Redis) -> None:
        # redis-py types its replies as unions of all that any command could return.
        self.client: Any = client

    def call(self, call: Command) -> Any:
        """Call a script."""
        return _repeated(call_script, self.client, call)

    def execute(self, *command: Arg, **options: Any) -> Any:
        """Send a command; redis-py parses the reply by the options."""
        return _repeated(self.client.execute_command, *command, **options)

    def replies(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip; return each reply, or the error of its command."""
        found: list[Any] = _repeated(self._pipeline, commands, raise_on_error=False)
        return found

    def read_all(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands that only read in one round trip; return their replies."""
        try:
            return self._pipeline(commands, raise_on_error=True)
        except RedisError as error:
            raise translate(error) from error

    def _pipeline(self, commands: Sequence[Command], *, raise_on_error: bool) -> list[Any]:
        pipe = self.client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return list(pipe.execute(raise_on_error=raise_on_error))


class AsyncScriptClient:
    """Calls scripts, and sends commands, over an asyncio client.

    All methods raise a BrokerError if Redis does not answer, or refuses.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        # redis-py types its replies as unions of all that any command could return.
        self._client: Any = client

    async def call_once(self, call: Command) -> Any:
        """Call a script for which a repeat would have another reply or effect, or send a command.

        After an error the outcome may be unknown.
        """
        try:
            return await self._call(call, pack(call))
        except RedisError as error:
            raise translate(error) from error

    async def call(self, call: Command) -> Any:
        """Call a script, a second time if the connection breaks; the script must allow a repeat."""
        packed = pack(call)
        try:
            try:
                return await self._call(call, packed)
            except (RedisConnectionError, RedisTimeoutError, ResponseError) as error:
                if isinstance(error, ResponseError) and outage_code(error) not in NO_PRIMARY:
                    raise
                if isinstance(error, ConnectTimeout):
                    raise
                return await self._call(call, packed)
        except RedisError as error:
            raise translate(error) from error

    async def read_all(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands that only read in one round trip; return their replies."""
        try:
            return await self._exchange(pack_all(commands), len(commands)) if commands else []
        except RedisError as error:
            raise translate(error) from error

    async def write_all(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands that take effect together; return their replies.

        After an error the outcome may be unknown.
        """
        *_, replies = await self.read_all([("MULTI",), *commands, ("EXEC",)])
        return list(replies)

    async def _call(self, call: Command, packed: bytes) -> Any:
        try:
            return (await self._exchange(packed, 1))[0]
        except NoScriptError:
            await self._exchange(pack(load_command(call)), 1)
            return (await self._exchange(packed, 1))[0]

    async def _exchange(self, packed: bytes, count: int) -> list[Any]:
        try:
            replies = await exchange(self._client, packed, count)
        except ConnectTimeout:
            raise
        except RedisTimeoutError:
            await drop_connections(self._client, idle=True)
            raise
        for reply in replies:
            if isinstance(reply, ResponseError):
                if outage_code(reply) in NO_PRIMARY:
                    # The same name is another server now.
                    await drop_connections(self._client, idle=False)
                raise reply
        return replies
