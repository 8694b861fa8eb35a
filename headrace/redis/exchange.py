"""Many commands to Redis in one write, each with its own answer.

What redis-py's pipeline does, for those who ask for the same again and again: the commands are
packed once, and what has come of the answers is taken at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import redis.asyncio
from hiredis import pack_command
from redis.exceptions import TimeoutError as RedisTimeoutError

from headrace.redis.connection import SOCKET_TIMEOUT_S, connection_of
from headrace.redis.scripts import Command


def packed(commands: Iterable[Command]) -> bytes:
    """Commands as they are sent."""
    # hiredis' own stub asks for a tuple of one.
    return b"".join(cast("bytes", pack_command(command)) for command in commands)  # type: ignore[arg-type]


async def exchange(client: redis.asyncio.Redis, commands: bytes, count: int) -> list[Any]:
    """Send so many packed commands; their replies, with an error at the place of its command.

    Raises:
        redis.exceptions.RedisError: Redis does not answer. All, some or none of them were done.
    """
    pool: Any = client.connection_pool
    connection = await connection_of(client)
    try:
        await connection.send_packed_command(commands)
        async with asyncio.timeout(SOCKET_TIMEOUT_S):
            return cast("list[Any]", await connection.read_replies(count))
    except TimeoutError as error:
        await connection.disconnect(nowait=True)
        raise RedisTimeoutError(f"no answer in {SOCKET_TIMEOUT_S:g} s") from error
    except BaseException:
        # Whoever took this connection next would read these answers.
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)
