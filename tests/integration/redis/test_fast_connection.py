"""Many commands to Redis in one write, each with its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from headrace.redis.connection import connect_async
from headrace.redis.fast_connection import exchange, pack_all, take_connection
from headrace.redis.scripts import Command
from tests.harness.servers.redis_servers import RedisServer, redis_server

KEY = "exchange"
Ask = Callable[..., Awaitable[list[Any]]]


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[Ask]:
    """What asks commands on one connection, as long as it holds."""
    client: redis.asyncio.Redis = connect_async(url)

    async def ask(*commands: Command) -> list[Any]:
        return await exchange(client, pack_all(commands), len(commands))

    try:
        yield ask
    finally:
        await client.aclose()


def test_an_error_stands_at_the_place_of_its_command(redis_db: RedisServer) -> None:
    async def go() -> None:
        async with asking(redis_db.url) as ask:
            for wrong_first in (False, True):
                wrong: Command = ("HGETALL", KEY)
                commands: list[Command] = [("SET", KEY, 7), ("GET", KEY), ("DEL", KEY)]
                commands.insert(0 if wrong_first else 1, wrong)
                await ask(("SET", KEY, 1))
                said = await ask(*commands)
                assert isinstance(said.pop(0 if wrong_first else 1), ResponseError)
                assert said == [b"OK", b"7", 1]

    asyncio.run(go())


def test_what_comes_in_many_pieces_is_whole(redis_db: RedisServer) -> None:
    async def go() -> None:
        values = [b"%d" % n * n for n in range(1, 1200)]
        async with asking(redis_db.url) as ask:
            assert await ask(("RPUSH", KEY, *values)) == [len(values)]
            said = await ask(*(("LINDEX", KEY, n) for n in range(len(values))), ("DEL", KEY))
            assert said == [*values, 1]
            assert sum(map(len, values)) > 2_000_000

    asyncio.run(go())


def test_an_idle_connection_is_taken_again_unless_something_came_or_it_is_gone(
    redis_db: RedisServer,
) -> None:
    async def go() -> None:
        client: redis.asyncio.Redis = connect_async(redis_db.url)
        ping = pack_all([("PING",)])

        async def known() -> Any:
            connection = await take_connection(client)
            await connection.send_packed_command(pack_all([("CLIENT", "ID")]))
            number = await connection.read_response()
            await client.connection_pool.release(connection)
            return number

        with redis_db.client() as other:
            first = await known()
            assert await known() == first
            # An answer that nobody has read is another command's.
            connection = await take_connection(client)
            await connection.send_packed_command(ping)
            while connection.in_order:  # noqa: ASYNC110 - redis-py has no event for it
                await asyncio.sleep(0)
            await client.connection_pool.release(connection)
            second = await known()
            assert second != first
            # Gone, whether or not that has been seen here.
            other.client_kill_filter(_id=second)
            while connection.in_order:  # noqa: ASYNC110 - redis-py has no event for it
                await asyncio.sleep(0)
            assert await known() not in (first, second)
            assert await exchange(client, ping, 1) == [b"PONG"]
        await client.aclose()

    asyncio.run(go())


def test_a_connection_that_breaks_between_the_answers_is_used_no_more(
    redis_db: RedisServer,
) -> None:
    async def go() -> None:
        async with asking(redis_db.url) as ask:
            # The answer to that still comes, and none to what stands behind it.
            with pytest.raises(RedisConnectionError):
                await ask(("PING",), ("QUIT",), ("PING",), ("PING",))
            assert await ask(("ECHO", "again")) == [b"again"]

    asyncio.run(go())


def test_a_redis_that_does_not_serve_is_an_error_and_no_answer() -> None:
    async def go(url: str) -> None:
        async with asking(url) as ask:
            secret: Command = ("CONFIG", "SET", "requirepass", "secret")
            with pytest.raises(AuthenticationError):
                await ask(secret, ("RESET",), ("GET", KEY), ("PING",))

    with redis_server() as server:
        asyncio.run(go(server.url))
