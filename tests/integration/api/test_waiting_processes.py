"""Waiting where several API processes share one Redis: who is woken, by what, and what is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis
from celery.result import AsyncResult

from headrace.jobs.ids import new_id
from headrace.jobs.message import Message
from headrace.redis import keys
from tests.harness.clients.celery_client import send, stock_client
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_processes import ApiProcesses, api_processes
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until

ECHO_JOBS = "/api/v1/models/echo/jobs"
Claimed = list[tuple[Message, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as started:
        yield started


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    """A clean server; a subscription to a job that outlives its wait fails the test."""
    with server.client() as client:
        client.flushall()
        yield client
        wait_until(lambda: not job_channels(client), "the subscriptions are given up")


@pytest.fixture(scope="module")
def pair(
    server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ApiProcesses, ApiProcesses]]:
    """Two APIs of one process each, so that a test can choose between them."""
    folder = tmp_path_factory.mktemp("pair")
    with (
        api_processes(folder / "one", server.url) as one,
        api_processes(folder / "other", server.url) as other,
    ):
        yield one, other


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as executor:
        yield executor


def job_channels(client: redis.Redis) -> list[bytes]:
    found: list[bytes] = []
    for prefix in (keys.meta, keys.ended):
        listed: Any = client.pubsub_channels(f"{prefix}*")
        found += listed
    return found


def subscribers(client: redis.Redis, job_id: str) -> int:
    found: Any = client.pubsub_numsub(keys.meta(job_id), keys.ended(job_id))
    # Both are subscribed to, and given up, in one command.
    return max(int(count) for _, count in found)


def waits_for(api: ApiProcesses, job_id: str, pool: ThreadPoolExecutor) -> Future[httpx2.Response]:
    return pool.submit(
        httpx2.get, f"{api.url}/api/v1/jobs/{job_id}?wait=60", timeout=90, verify=PLAIN
    )


def claimed_jobs(client: redis.Redis, count: int = 1) -> Claimed:
    found: Claimed = []

    def enough() -> bool:
        found.extend(claim(client, "echo"))
        return len(found) >= count

    wait_until(enough, f"{count} jobs")
    return found


def test_requests_that_wait_on_several_processes_are_all_answered(
    pair: tuple[ApiProcesses, ApiProcesses], client: redis.Redis, pool: ThreadPoolExecutor
) -> None:
    one, other = pair
    asked = [
        pool.submit(httpx2.post, f"{one.url}{ECHO_JOBS}?wait=60", json=1, timeout=90, verify=PLAIN)
    ]
    claimed = claimed_jobs(client)
    job_id = claimed[0][0].id
    # On the process that has submitted it, and twice on the one that has not.
    asked += [waits_for(api, job_id, pool) for api in (one, other, other)]
    other.wait_for_waiters(4)
    # One subscription a process, however many wait there.
    wait_until(lambda: subscribers(client, job_id) == 2, "each process has subscribed")
    settle(client, "echo", claimed, [Answer(result=b'"done"')])
    answers = [future.result(60) for future in asked]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert {answer.json()["result"] for answer in answers} == {"done"}
    wait_until(lambda: subscribers(client, job_id) == 0, "the subscriptions are given up")
    one.wait_for_waiters(0)


def test_a_wait_for_a_quiet_job_ends_on_each_process(
    pair: tuple[ApiProcesses, ApiProcesses], client: redis.Redis, pool: ThreadPoolExecutor
) -> None:
    line = b'{"model":"echo","input":1,"id":"quiet-1"}'
    answer = httpx2.post(
        f"{pair[0].url}/api/v1/jobs/bulk?quiet=1", content=line, timeout=60, verify=PLAIN
    )
    assert answer.json()["status"] == "queued"
    asked = [waits_for(api, "quiet-1", pool) for api in pair]
    wait_until(lambda: client.hget(keys.job("quiet-1"), "w") is None, "somebody listens")
    wait_until(lambda: subscribers(client, "quiet-1") == 2, "both wait")
    settle(client, "echo", claimed_jobs(client), [Answer(result=b"7")])
    answers = [future.result(60).json() for future in asked]
    assert [(job["status"], job["result"]) for job in answers] == [("succeeded", 7)] * 2
    assert client.exists(keys.meta("quiet-1")) == 0


@pytest.mark.parametrize("ignore_result", [False, True])
def test_a_stock_clients_job_wakes_its_waiting_requests(
    server: RedisServer,
    pair: tuple[ApiProcesses, ApiProcesses],
    client: redis.Redis,
    pool: ThreadPoolExecutor,
    ignore_result: bool,
) -> None:
    with stock_client(server.url) as app:
        sent = send(app, "echo", 1, ignore_result=ignore_result)
    claimed = claimed_jobs(client)
    assert claimed[0][0].ignore_result == ignore_result
    asked = [waits_for(api, sent.id, pool) for api in pair]
    wait_until(lambda: subscribers(client, sent.id) == 2, "both wait")
    settle(client, "echo", claimed, [Answer(result=b"7", ignore_result=ignore_result)])
    for future in asked:
        job = future.result(60).json()
        assert (job["status"], job["result"]) == ("succeeded", None if ignore_result else 7)
    result = httpx2.get(f"{pair[0].url}/api/v1/jobs/{sent.id}/result", timeout=60, verify=PLAIN)
    assert result.status_code == (204 if ignore_result else 200)


def test_what_is_published_without_a_result_does_not_end_a_stock_clients_wait(
    server: RedisServer, client: redis.Redis, pool: ThreadPoolExecutor
) -> None:
    with stock_client(server.url) as app:
        sent = send(app, "echo", 1, ignore_result=True)
        claimed = claimed_jobs(client)
        seen: list[dict[str, Any]] = []
        # One who knows the id alone, as another process would.
        outsider: AsyncResult[Any] = AsyncResult(sent.id, app=app)
        asked = pool.submit(lambda: outsider.get(timeout=60, on_message=seen.append))
        wait_until(lambda: subscribers(client, sent.id) == 1, "it waits")
        settle(client, "echo", claimed, [Answer(ignore_result=True)])
        wait_until(lambda: [message["status"] for message in seen] == ["IGNORED"], "it has heard")
        assert not asked.done()
        ready = {"status": "SUCCESS", "result": 5, "task_id": sent.id}
        client.publish(keys.meta(sent.id), json.dumps(ready))
        assert asked.result(60) == 5


def test_a_wait_asks_redis_for_nothing_until_it_is_woken(
    pair: tuple[ApiProcesses, ApiProcesses], client: redis.Redis, pool: ThreadPoolExecutor
) -> None:
    one, other = pair
    asked = [
        pool.submit(httpx2.post, f"{one.url}{ECHO_JOBS}?wait=60", json=1, timeout=90, verify=PLAIN)
    ]
    claimed = claimed_jobs(client)
    job_id = claimed[0][0].id
    asked += [waits_for(api, job_id, pool) for api in (one, other)]
    wait_until(lambda: subscribers(client, job_id) == 2, "each process has subscribed")
    one.wait_for_waiters(3)
    wait_until(lambda: client.exists(keys.REGISTRY), "the models file is applied again")
    # Each process has said how many wait, and what the scrapes asked for is answered.
    client.config_resetstat()

    def commands() -> dict[str, Any]:
        found: Any = client.info("commandstats")
        return {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in found.items()}

    # Five seconds of silence, after which each process asks whether its connection lives.
    wait_until(lambda: commands().get("ping", 0) >= 2, "both were silent", 60)
    # `set` says again that requests wait, before what was said runs out; `hincrby` counts requests.
    asked_for = {"ping", "set", "hincrby", "info", "config|resetstat"}
    # Whether the registry of models has changed, and what it has.
    asked_for |= {"hget", "hmget", "hgetall"}
    # Each second jobs/expire.lua looks for what has waited too long, and finds nothing.
    swept = {"evalsha", "time", "zrangebyscore"}
    # Two of these at the same moment want a second connection.
    connected = {"hello", "client|setinfo"}
    assert commands().keys() <= asked_for | swept | connected
    settle(client, "echo", claimed, [Answer(result=b"2")])
    assert [future.result(60).json()["result"] for future in asked] == [2, 2, 2]
    # That it has ended and how, to who did not submit it, and once more to who did;
    # nobody has read the record.
    assert commands()["publish"] == 3
    calls = commands()
    # Alone, this test is the first here to settle: the server does not know the script.
    # Sweeps and a settlement ask for the time; what reads a record does not.
    assert calls["evalsha"] - calls["time"] - calls.get("script|load", 0) == 0


def test_a_client_that_hangs_up_frees_its_waiter(
    pair: tuple[ApiProcesses, ApiProcesses], client: redis.Redis, pool: ThreadPoolExecutor
) -> None:
    one, other = pair
    own = pool.submit(
        httpx2.post, f"{one.url}{ECHO_JOBS}?wait=60", json=1, timeout=90, verify=PLAIN
    )
    claimed = claimed_jobs(client)
    job_id = claimed[0][0].id
    stays = waits_for(one, job_id, pool)
    with socket.create_connection(("127.0.0.1", other.port), 60) as connection:
        connection.sendall(
            f"GET /api/v1/jobs/{job_id}?wait=60 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        wait_until(lambda: subscribers(client, job_id) == 2, "both wait")
        one.wait_for_waiters(3)
    wait_until(lambda: subscribers(client, job_id) == 1, "the one that hung up is forgotten")
    one.wait_for_waiters(2)
    settle(client, "echo", claimed, [Answer(result=b"3")])
    assert own.result(60).json()["result"] == stays.result(60).json()["result"] == 3


def ask_until_ended(api: ApiProcesses, job_id: str, broken: list[str]) -> Any:
    """A client that takes an answer for what it is, and asks again after anything else."""
    while True:
        try:
            answer = httpx2.get(f"{api.url}/api/v1/jobs/{job_id}?wait=60", timeout=90, verify=PLAIN)
        except httpx2.TransportError as error:
            broken.append(type(error).__name__)
            continue
        assert answer.status_code in (200, 202), answer.text
        if answer.status_code == 200:
            return answer.json()["result"]
        broken.append("202")


@pytest.mark.parametrize(
    "how", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_processes_end_while_requests_wait(
    tmp_path: Path, server: RedisServer, client: redis.Redis, how: signal.Signals
) -> None:
    broken: list[str] = []
    with api_processes(tmp_path, server.url, 2) as api:
        location = httpx2.post(f"{api.url}{ECHO_JOBS}", json=1, timeout=60, verify=PLAIN).headers[
            "location"
        ]
        job_id = location.rpartition("/")[2]
        claimed = claimed_jobs(client)
        results: list[Any] = []
        threads = [
            threading.Thread(
                target=lambda: results.append(ask_until_ended(api, job_id, broken)), daemon=True
            )
            for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        api.wait_for_waiters(12)
        dead = api.pids()
        # One after the other: every one of them has lost its process once by the end.
        for pid in dead:
            os.kill(pid, how)
            wait_until(
                lambda pid=pid: pid not in api.pids() and len(api.pids()) == 2,  # type: ignore[misc]
                "it is back",
                60,
            )
            api.wait_for_waiters(12)
        settle(client, "echo", claimed, [Answer(result=b'"after all"')])
        for thread in threads:
            thread.join(60)
        assert results == ["after all"] * 12
        assert len(broken) >= 12
        api.wait_for_waiters(0)
        wait_until(lambda: not job_channels(client), "the subscriptions are given up")


def test_an_unknown_id_is_not_waited_for(
    pair: tuple[ApiProcesses, ApiProcesses], client: redis.Redis
) -> None:
    answer = httpx2.get(f"{pair[1].url}/api/v1/jobs/{new_id()}?wait=60", timeout=90, verify=PLAIN)
    assert answer.status_code == 404
    assert job_channels(client) == []
