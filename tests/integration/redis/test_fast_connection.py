"""Many commands to Redis in one write, each with its own answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from headrace.config.model.catalog import ModelConfig
from headrace.errors import BrokerError
from headrace.queue.job_queue import JobQueue
from headrace.queue.submission import SubmitKind, submission
from headrace.redis.connection import connect_async, drop_connections
from headrace.redis.fast_connection import exchange, pack_all, take_connection
from headrace.redis.scripts import Command
from tests.harness.servers.redis_servers import RedisServer, redis_server

KEY = "exchange"
#: How many tasks connect while others close all connections.
TASKS = 50
MODEL = ModelConfig(name="m", handler="echo")
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


def test_a_connection_with_an_answer_that_was_not_read_is_used_no_more(
    redis_db: RedisServer,
) -> None:
    async def go() -> None:
        client: redis.asyncio.Redis = connect_async(redis_db.url)
        connection = await take_connection(client)
        await connection.send_packed_command(pack_all([("ECHO", "another's")]))
        while connection.in_order:  # noqa: ASYNC110 - redis-py has no event for it
            await asyncio.sleep(0)
        await client.connection_pool.release(connection)
        assert await exchange(client, pack_all([("PING",)]), 1) == [b"PONG"]
        await client.aclose()

    asyncio.run(go())


@pytest.mark.leaves_keys
@pytest.mark.parametrize("seen", [False, True])
def test_a_submit_after_its_idle_connection_was_killed_succeeds(
    redis_db: RedisServer, seen: bool
) -> None:
    async def go() -> None:
        client: redis.asyncio.Redis = connect_async(redis_db.url)
        queue = JobQueue(client)
        with redis_db.client() as other:
            for n in range(3):
                connection = await take_connection(client)
                await client.connection_pool.release(connection)
                other.client_kill_filter(_type="normal", skipme=True)
                while seen and connection.in_order:  # noqa: ASYNC110 - redis-py has no event
                    await asyncio.sleep(0)
                job = submission(SubmitKind(MODEL, 60), f"job-{n}", b"1", now_s=time.time())
                assert not (await queue.submit(job)).repeated
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


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_connections_that_close_during_their_handshake_are_lost_connections(
    redis_db: RedisServer, rounds: int
) -> None:
    """As those of a server that has become a replica; the API answers 503 then."""

    async def run() -> set[str]:
        client = connect_async(redis_db.url)
        queue, wrong = JobQueue(client), set[str]()

        async def ask(n: int) -> None:
            try:
                await asyncio.sleep(0.0004 * n)
                await (queue.fields(KEY) if n % 2 else queue.ping())
            except BrokerError:
                pass
            except Exception as error:  # noqa: BLE001 - what the API would answer 500
                wrong.add(repr(error))
            if n % 5 == 0:
                await drop_connections(client, idle=False)

        for _ in range(rounds):
            await asyncio.gather(*map(ask, range(TASKS)))
        await client.aclose()
        return wrong

    assert asyncio.run(run()) == set()
