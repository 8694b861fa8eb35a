"""The queue as an API sees it, on every flavour of Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import uvloop
from msgspec.structs import replace
from redis.exceptions import ConnectionError as RedisConnectionError

from headrace.config.model.catalog import ModelConfig
from headrace.errors import (
    BrokerFull,
    BrokerUnavailable,
    Conflict,
    HeadraceError,
    QueueFull,
)
from headrace.jobs.ids import new_id
from headrace.jobs.job import State
from headrace.jobs.options import JobOptions
from headrace.queue.following.subscription import Subscription
from headrace.queue.following.waiters import Waiters
from headrace.queue.job_queue import JobQueue
from headrace.queue.submission import (
    JobSubmission,
    Receipt,
    SubmitKind,
    hash_request,
    submission,
)
from headrace.redis import keys
from headrace.redis.connection import connect_async
from tests.harness.fakes.worker import Answer, FakeWorker, claim, publish_state, settle
from tests.harness.servers.redis_servers import RedisServer, redis_server

MODEL = ModelConfig(name="echo", handler="echo", max_queue_depth=5)
T = TypeVar("T")


def job(
    value: bytes = b"1", job_id: str = "", request_hash: str = "", **kind: Any
) -> JobSubmission:
    return submission(
        SubmitKind(MODEL, 60, **kind),
        job_id or new_id(),
        value,
        now_s=time.time(),
        request_hash=request_hash,
    )


@asynccontextmanager
async def job_queue(server: RedisServer) -> AsyncIterator[JobQueue]:
    client = connect_async(server.url)
    queue = JobQueue(client)
    try:
        yield queue
    finally:
        await queue.close()
        await client.aclose()


def with_queue(server: RedisServer, work: Callable[[JobQueue], Awaitable[T]]) -> T:
    """Run a coroutine over a queue of its own."""

    async def run() -> T:
        async with job_queue(server) as queue:
            return await work(queue)

    return asyncio.run(run())


def drain(server: RedisServer) -> list[str]:
    """End all that waits; the ids, in the order in which they were served."""
    with server.client() as client:
        claimed = claim(client, "echo")
        settle(client, "echo", claimed, [Answer(result=m.input) for m, _ in claimed])
    return [message.id for message, _ in claimed]


def test_neighbours_are_answered_apart(any_redis: RedisServer) -> None:
    known = job(b"1", request_hash="a")
    other = job(b"2", known.id, request_hash="b")

    async def work(queue: JobQueue) -> list[object]:
        jobs = [known, known, other, *(job(options=JobOptions(priority=9)) for _ in range(6))]
        return list(await asyncio.gather(*map(queue.submit, jobs), return_exceptions=True))

    found = with_queue(any_redis, work)
    assert [isinstance(answer, Receipt) and answer.repeated for answer in found[:2]] == [
        False,
        True,
    ]
    assert isinstance(found[2], Conflict)
    assert [type(answer) for answer in found[3:]] == [Receipt] * 4 + [QueueFull] * 2
    assert len(drain(any_redis)) == 5


def test_a_submit_may_be_said_twice(any_redis: RedisServer) -> None:
    once = job()

    async def work(queue: JobQueue) -> tuple[Receipt, Receipt]:
        first = await queue.submit(once)
        return first, await queue.submit(once)

    first, second = with_queue(any_redis, work)
    assert (first.repeated, second.repeated) == (False, True)
    assert first.created_us == second.created_us
    assert drain(any_redis) == [once.id]


def test_reads_and_cancels(any_redis: RedisServer) -> None:
    ids = [new_id() for _ in range(3)]

    async def work(queue: JobQueue) -> None:
        for job_id in ids:
            await queue.submit(job(b'{"a":[]}', job_id))
        found = await asyncio.gather(*(queue.read(job_id) for job_id in [*ids, "nope"]))
        assert [found_job and found_job.place for found_job in found] == [1, 2, 3, None]
        outcomes = await asyncio.gather(*(queue.cancel_one(job_id) for job_id in [ids[1], "nope"]))
        assert outcomes == ["removed", "unknown"]
        depth = (await queue.depths(["headrace.echo"]))[0]
        assert (depth.total, depth.waiting[0], depth.in_flight) == (2, 2, 0)
        assert depth.oldest_age_s is not None
        with any_redis.client() as client:
            claimed = claim(client, "echo")
            assert [message.id for message, _ in claimed] == [ids[0], ids[2]]
            assert await queue.cancel([ids[0], ids[1]]) == ["asked", "ended"]
            settle(client, "echo", claimed, [Answer(result=b'{"b":[]}')] * 2)
        first, second, third = await queue.view(ids)
        assert first is not None
        assert second is not None
        assert third is not None
        states = [first.state, second.state, third.state]
        assert states == [State.CANCELLED, State.CANCELLED, State.SUCCEEDED]
        assert third.result_json == b'{"b":[]}'
        assert third.ended_us >= third.started_us >= third.created_us > 0
        bare = (await queue.view([ids[2]], results=False))[0]
        assert bare is not None
        assert bare.result_json is None

    with_queue(any_redis, work)


def test_a_server_that_forgot_the_scripts(any_redis: RedisServer) -> None:
    async def work(queue: JobQueue) -> None:
        await queue.submit(job())
        with any_redis.client() as client:
            client.script_flush()
        assert not (await queue.submit(job())).repeated

    with_queue(any_redis, work)
    assert len(drain(any_redis)) == 2


def test_a_connection_that_breaks_is_no_matter(any_redis: RedisServer) -> None:
    async def work(queue: JobQueue) -> None:
        await queue.submit(job())
        with any_redis.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        assert await queue.read("nope") is None
        await queue.submit(job())

    with_queue(any_redis, work)
    assert len(drain(any_redis)) == 2


def test_a_full_server_is_told_from_an_absent_one() -> None:
    with redis_server("redis7") as server:

        async def work(queue: JobQueue) -> list[HeadraceError]:
            errors: list[HeadraceError] = []
            with server.client() as client:
                client.config_set("maxmemory", 1)
            for stop in (False, True):
                if stop:
                    server.stop()
                try:
                    await queue.submit(job())
                except HeadraceError as error:
                    errors.append(error)
            for ask in (queue.ping(), queue.worker_states()):
                with pytest.raises(BrokerUnavailable):
                    await ask
            return errors

        full, absent = with_queue(server, work)
    assert isinstance(full, BrokerFull)
    assert isinstance(absent, BrokerUnavailable)


def test_a_queue_whose_key_is_no_list(any_redis: RedisServer) -> None:
    with any_redis.client() as client:
        client.set("headrace.echo", "x")

        async def work(queue: JobQueue) -> None:
            with pytest.raises(BrokerUnavailable, match="echo"):
                await queue.submit(job())

        with_queue(any_redis, work)
        client.delete("headrace.echo")


def test_what_workers_say(any_redis: RedisServer) -> None:
    with any_redis.client() as client:
        publish_state(client, "w1", "echo", "ready")

    async def work(queue: JobQueue) -> None:
        reports = await queue.worker_states()
        assert reports["w1"].models["echo"].state == "ready"
        assert (reports["w1"].node, reports["w1"].pid) == ("w1@test", 4710)

    with_queue(any_redis, work)


def test_waiters_are_told_all_that_an_answer_needs(any_redis: RedisServer) -> None:
    async def work() -> None:
        client = connect_async(any_redis.url)
        queue, subscription = JobQueue(client), Subscription(client)
        waiters = Waiters(subscription, "api-1")
        subscription.start()
        asked = job(b'{"x":1}', options=JobOptions(metadata={"n": 1}), waiter="api-1")
        try:
            with FakeWorker(any_redis.url, "echo"), waiters.own(asked.id) as wait:
                async with asyncio.timeout(60):
                    # The first connection tells all to look at their records.
                    assert await wait.woken() is None
                    receipt = await queue.submit(asked)
                    ended = await wait.woken()
                assert ended is not None
                told = ended.job("echo", receipt.created_us, '{"n":1}')
                read = await queue.read(asked.id)
            assert read is not None
            assert replace(told, token=read.token) == read
            assert waiters.count == 0
        finally:
            await subscription.stop()
            await queue.close()
            await client.aclose()

    asyncio.run(work())


@pytest.mark.parametrize(("size", "told"), [(1, True), (60_000, True), (70_000, False)])
def test_who_waits_elsewhere_is_told_as_much_or_looks(
    any_redis: RedisServer, size: int, told: bool
) -> None:
    async def work(queue: JobQueue) -> None:
        client = connect_async(any_redis.url)
        subscription = Subscription(client)
        waiters = Waiters(subscription, "api-2")
        subscription.start()
        asked = job(b'"%s"' % (b"x" * size), options=JobOptions(metadata={"n": 1}))
        try:
            async with asyncio.timeout(60), waiters.foreign(asked.id) as wait:
                # The first connection tells all to look at their records, and then hears.
                assert await wait.woken() is None
                receipt = await queue.submit(asked)
                with FakeWorker(any_redis.url, "echo"):
                    ended, read = await wait.woken(), await queue.read(asked.id)
                    # Two publications may come in two pieces.
                    while read is None or not read.state.final or (told and ended is None):
                        ended, read = await wait.woken(), await queue.read(asked.id)
        finally:
            await subscription.stop()
            await client.aclose()
        as_told = ended and ended.job("echo", receipt.created_us, '{"n":1}')
        assert (as_told and replace(as_told, token=read.token)) == (read if told else None)

    with_queue(any_redis, work)


def test_a_publication_that_cannot_be_read_costs_a_look(any_redis: RedisServer) -> None:
    async def work() -> None:
        client = connect_async(any_redis.url)
        subscription = Subscription(client)
        waiters = Waiters(subscription, "api-1")
        subscription.start()
        try:
            async with asyncio.timeout(60), waiters.foreign("nope"):
                with waiters.own("job-1") as wait:
                    # The first connection tells all to look at their records.
                    await wait.woken()
                    assert waiters.listening
                    await client.publish(keys.done_channel("api-1"), b"\xff\xff")
                    assert await wait.woken() is None
        finally:
            await subscription.stop()
            await client.aclose()

    asyncio.run(work())


def test_a_connection_that_breaks_while_many_begin_to_wait_fails_nobody_and_is_renewed(
    redis_db: RedisServer,
) -> None:
    async def work() -> None:
        client = connect_async(redis_db.url)
        admin: Any = connect_async(redis_db.url)
        subscription = Subscription(client)
        waiters = Waiters(subscription, "api-1")
        over = asyncio.Event()

        async def wait_again_and_again(name: str) -> None:
            count = 0
            while not over.is_set():
                count += 1
                async with waiters.foreign(f"{name}-{count}"):
                    await asyncio.sleep(0)

        async def listens() -> None:
            while not waiters.listening:
                await admin.ping()

        subscription.start()
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for name in "abcdefghijkl":
                group.create_task(wait_again_and_again(name))
            for _ in range(40):
                await listens()
                await admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            await listens()
            over.set()
        async with asyncio.timeout(60), waiters.foreign("last") as wait:
            await admin.publish(keys.meta("last"), b"{}")
            await wait.woken()
        await subscription.stop()
        await client.aclose()
        await admin.aclose()

    asyncio.run(work())


def test_a_connection_that_uvloop_has_closed_is_an_outage_of_redis(redis_db: RedisServer) -> None:
    async def work() -> None:
        client = connect_async(redis_db.url)
        pool: Any = client.connection_pool
        connection = await pool.get_connection()
        connection._writer.transport.abort()
        with pytest.raises(RedisConnectionError):
            await connection.send_command("PING")
        await pool.release(connection)
        assert await client.echo("again") == b"again"
        await client.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())


def test_a_stopped_waiters_lets_nobody_wait(any_redis: RedisServer) -> None:
    async def work() -> None:
        client = connect_async(any_redis.url)
        subscription = Subscription(client)
        waiters = Waiters(subscription, "api-1")
        subscription.start()
        async with asyncio.timeout(60), waiters.foreign("a") as foreign:
            with waiters.own("b") as own:
                assert waiters.count == 2
                waiters.stop()
                assert await own.woken() is None
                assert await foreign.woken() is None
            with waiters.own("c") as late:
                assert await late.woken() is None
        await subscription.stop()
        await client.aclose()

    asyncio.run(work())


def test_requests_of_different_options_differ() -> None:
    plain = hash_request("echo", b"1", JobOptions())
    assert plain == hash_request("echo", b"1", JobOptions())
    others = {
        hash_request("echo", b"2", JobOptions()),
        hash_request("tiny", b"1", JobOptions()),
        hash_request("echo", b"1", JobOptions(priority=3)),
    }
    assert len(others | {plain}) == 4


def test_the_parts_of_a_process_share_its_subscription(redis_db: RedisServer) -> None:
    """A channel is left with its last listener, and a part that fails reads what it has missed."""

    async def work() -> None:
        client: Any = connect_async(redis_db.url)
        subscription = Subscription(client)
        heard: list[tuple[str, str, bytes]] = []
        news = asyncio.Event()

        def note(part: str, channel: str, data: bytes) -> None:
            heard.append((part, channel, data))
            news.set()

        def one(channel: str, data: bytes) -> None:
            note("one", channel, data)

        def other(channel: str, data: bytes) -> None:
            note("other", channel, data)
            if data == b"bad":
                raise ValueError

        async def told(channel: str, data: str, count: int) -> list[tuple[str, str, bytes]]:
            heard.clear()
            await client.publish(channel, data)
            while len(heard) < count:
                news.clear()
                await news.wait()
            return sorted(heard)

        subscription.add(one, "own")
        subscription.add(other, on_reconnect=lambda: note("other", "", b"again"))
        subscription.start()
        async with asyncio.timeout(60):
            await news.wait()
            await subscription.subscribe(one, "both")
            await subscription.subscribe(other, "both")
            await subscription.confirmed("both")
            both = [("one", "both", b"x"), ("other", "both", b"x")]
            assert await told("both", "x", 2) == both
            await client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            while ("other", "", b"again") not in heard:
                news.clear()
                await news.wait()
            assert await told("both", "x", 2) == both
            assert ("other", "", b"again") in await told("both", "bad", 3)
            await subscription.unsubscribe(other, "both")
            await subscription.unsubscribe(other, "both")
            assert await told("both", "x", 1) == both[:1]
            await subscription.unsubscribe(one, "both")
            assert await told("own", "x", 1) == [("one", "own", b"x")]
            while (await client.pubsub_numsub("both"))[0][1]:
                await client.ping()
        await subscription.stop()
        await client.aclose()

    asyncio.run(work())
