"""Waiting over HTTP: who is woken, when, and what an outage of Redis does to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from headrace.jobs.job import Job
from headrace.redis import keys
from headrace.redis.keys import queue_name
from tests.harness.fakes.worker import Answer, FakeWorker, claim, failure, settle
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until

ECHO_JOBS = "/api/v1/models/echo/jobs"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def waiting(api: ApiServer, count: int) -> None:
    wait_until(lambda: api.services.waiters.count == count, f"{count} requests wait")


def answer_all(redis_db: RedisServer, answer: Answer, model: str = "echo") -> None:
    """Claim and settle whatever waits, once something does."""
    with redis_db.client() as client:
        wait_until(lambda: client.llen(queue_name(model)) > 0, "a job is queued")
        claimed = claim(client, model)
        settle(client, model, claimed, [answer] * len(claimed))


def test_a_submit_waits_for_its_end(
    api: ApiServer, redis_db: RedisServer, pool: ThreadPoolExecutor
) -> None:
    for headers, query in (({"Prefer": "wait=30"}, ""), ({"Prefer": "wait=1"}, "?wait=30")):
        asked = pool.submit(api.http.post, ECHO_JOBS + query, json=1, headers=headers)
        waiting(api, 1)
        answer_all(redis_db, Answer(result=b'"done"'))
        response = asked.result(60)
        assert response.status_code == 200
        assert response.headers["preference-applied"] == "wait=30"
        job = response.json()
        assert (job["status"], job["result"]) == ("succeeded", "done")
        assert response.headers["location"] == job["urls"]["self"]
        # What was told over the waiting connection is what the record says.
        assert api.http.get(job["urls"]["self"]).json() == job
    waiting(api, 0)


def test_a_failed_job_is_an_answer_too(
    api: ApiServer, redis_db: RedisServer, pool: ThreadPoolExecutor
) -> None:
    asked = pool.submit(api.http.post, f"{ECHO_JOBS}?wait=30", json=1)
    waiting(api, 1)
    answer_all(redis_db, failure("input-error", "bad"))
    response = asked.result(60)
    assert response.status_code == 200
    assert response.json()["error"] == {"type": "input-error", "message": "bad", "retryable": False}


def test_a_wait_that_ends_first_decides_nothing(api: ApiServer, redis_db: RedisServer) -> None:
    response = api.http.post(ECHO_JOBS, json=1, headers={"Prefer": "respond-async, wait=1"})
    assert response.status_code == 202
    assert response.headers["preference-applied"] == "wait=1"
    assert response.headers["retry-after"] == "1"
    job = response.json()
    assert (job["status"], job["queue_position"]) == ("queued", 1)
    response = api.http.get(job["urls"]["self"] + "?wait=0.1")
    assert (response.status_code, response.json()["status"]) == (202, "queued")
    assert response.headers["preference-applied"] == "wait=0.1"
    waiting(api, 0)
    answer_all(redis_db, Answer(result=b"1"))
    assert api.http.get(job["urls"]["self"] + "?wait=9").json()["status"] == "succeeded"


def test_any_number_may_wait_for_any_job(
    api: ApiServer, redis_db: RedisServer, pool: ThreadPoolExecutor
) -> None:
    path = api.http.post(ECHO_JOBS, json=1).headers["location"]
    asked = [pool.submit(api.http.get, f"{path}?wait=30") for _ in range(3)]
    asked.append(pool.submit(api.http.get, path, headers={"Prefer": "wait=30"}))
    asked.append(pool.submit(api.http.get, f"{path}/result?wait=30"))
    waiting(api, 5)
    answer_all(redis_db, Answer(result=b"[7]"))
    answers = [request.result(60) for request in asked]
    assert [response.status_code for response in answers] == [200] * 5
    assert [response.json()["result"] for response in answers[:4]] == [[7]] * 4
    assert answers[4].json() == [7]
    waiting(api, 0)
    with redis_db.client() as client:
        channel = f"celery-task-meta-{path.rpartition('/')[2]}"
        wait_until(lambda: client.pubsub_numsub(channel)[0][1] == 0, "the subscription is given up")


def test_a_job_that_ends_before_the_subscription_stands(
    api: ApiServer, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = api.http.post(ECHO_JOBS, json=1).headers["location"]
    read = api.services.queue.read

    async def read_then_end(job_id: str) -> Job | None:
        monkeypatch.undo()
        found = await read(job_id)
        answer_all(redis_db, Answer(result=b"3"))
        return found

    monkeypatch.setattr(api.services.queue, "read", read_then_end)
    response = api.http.get(f"{path}?wait=60", timeout=20)
    assert response.json()["result"] == 3


def test_a_job_of_another_process_wakes_too(
    api: ApiServer, redis_db: RedisServer, pool: ThreadPoolExecutor
) -> None:
    with api_server(redis_db.url, catalog(echo={})) as other:
        own = pool.submit(other.http.post, f"{ECHO_JOBS}?wait=30", json=1)
        waiting(other, 1)
        with redis_db.client() as client:
            wait_until(lambda: client.llen(queue_name("echo")) == 1, "the job is queued")
            claimed = claim(client, "echo")
        foreign = pool.submit(api.http.get, f"/api/v1/jobs/{claimed[0][0].id}?wait=30")
        waiting(api, 1)
        with redis_db.client() as client:
            settle(client, "echo", claimed, [Answer(result=b"2")])
        assert own.result(60).json() == foreign.result(60).json()


def test_a_cancelled_job_wakes_its_waiters(
    api: ApiServer, redis_db: RedisServer, pool: ThreadPoolExecutor
) -> None:
    own = pool.submit(api.http.post, f"{ECHO_JOBS}?wait=30", json=1)
    waiting(api, 1)
    with redis_db.client() as client:
        job_id = wait_until(
            lambda: next(client.scan_iter("hr:job:*"), b"").decode().removeprefix("hr:job:"),
            "a job",
        )
    foreign = pool.submit(api.http.get, f"/api/v1/jobs/{job_id}?wait=30")
    waiting(api, 2)
    assert api.http.delete(f"/api/v1/jobs/{job_id}").json()["outcome"] == "removed"
    for response in (own.result(60), foreign.result(60)):
        assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    with redis_db.client() as client:
        assert claim(client, "echo") == []


def test_many_waiters_are_told_apart(
    api: ApiServer, redis_db: RedisServer, pool: ThreadPoolExecutor
) -> None:
    with FakeWorker(redis_db.url, "echo"):
        url = f"{ECHO_JOBS}?wait=30"
        answers = pool.map(lambda n: api.http.post(url, json=n).json()["result"], range(200))
        assert list(answers) == list(range(200))
    waiting(api, 0)


@pytest.mark.parametrize("sent", [1, 2, 3], ids="{} sent at once".format)
@pytest.mark.parametrize("verb", ["POST", "GET"])
def test_a_client_that_hangs_up_frees_its_waiter(
    api: ApiServer, redis_db: RedisServer, caplog: pytest.LogCaptureFixture, verb: str, sent: int
) -> None:
    path = ECHO_JOBS
    if verb == "GET":
        path = api.http.post(ECHO_JOBS, json=1).headers["location"]
    head = f"{verb} {path}?wait=60 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1"
    with api.connect() as connection:
        connection.sendall(head.encode() * sent)
        waiting(api, 1)
    waiting(api, 0)
    wait_until(lambda: not api.server.server_state.tasks, "all requests have ended")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    with redis_db.client() as client:
        # The job is none the worse for it.
        (one,) = wait_until(lambda: claim(client, "echo"), "the job")
        settle(client, "echo", [one], [Answer()])


@contextmanager
def own_redis(tmp_path: Path) -> Iterator[tuple[RedisServer, ApiServer]]:
    """A Redis of its own that can be stopped, with an append-only file, and an API over it."""
    with (
        redis_server("valkey9", "--appendonly", "yes", "--appendfsync", "always") as server,
        api_server(server.url, catalog(echo={}), max_wait_s=600) as api,
    ):
        wait_until(lambda: api.services.waiters.listening, "the API listens")
        yield server, api


def test_redis_restarts_under_waiters(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with own_redis(tmp_path) as (server, api):
        path = api.http.post(ECHO_JOBS, json=1).headers["location"]
        foreign = pool.submit(api.http.get, f"{path}?wait=50", timeout=90)
        own = pool.submit(api.http.post, f"{ECHO_JOBS}?wait=50", json=2, timeout=90)
        waiting(api, 2)
        with server.client() as client:
            wait_until(lambda: client.llen("headrace.echo") == 2, "both jobs are queued")
            claimed = claim(client, "echo")
        server.stop()
        wait_until(lambda: not api.services.waiters.listening, "the API sees the outage")
        server.start()
        with server.client() as client:
            # They end before the API listens again, so that its publications are lost.
            settle(client, "echo", claimed, [Answer(result=b'"after"')] * 2)
        for asked in (foreign, own):
            response = asked.result(90)
            assert response.status_code == 200, response.text
            assert response.json()["result"] == "after"
        waiting(api, 0)


@pytest.mark.parametrize("at", ["once", "later"])
def test_redis_forgets_what_is_waited_for(
    tmp_path: Path, pool: ThreadPoolExecutor, at: str
) -> None:
    with own_redis(tmp_path) as (server, api):
        asked = pool.submit(api.http.post, f"{ECHO_JOBS}?wait=600", json=2, timeout=600)
        waiting(api, 1)
        with server.client() as client:
            wait_until(lambda: client.llen("headrace.echo") == 1, "the job is queued")
            if at == "later":
                reported = keys.api(api.services.waiters.api_id)
                wait_until(lambda: client.get(reported) == b"1", "the wait is reported")
            client.flushall()
        response = asked.result(120)
        assert (response.status_code, response.json()["type"]) == (404, "/problems/job-not-found")


def test_a_wait_outlasts_redis_and_says_what_it_knows(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    for wait_s in (3, 15, 60):
        own, foreign, in_time = killed_under_waits(tmp_path, pool, wait_s)
        if in_time:
            break
        # Else the machine stood still for as long, and the waits were over first.
    assert (own.status_code, own.json()["status"]) == (202, "queued")
    assert foreign.status_code == 503
    assert foreign.json()["type"] == "/problems/broker-unavailable"


def killed_under_waits(
    tmp_path: Path, pool: ThreadPoolExecutor, wait_s: int
) -> tuple[httpx2.Response, httpx2.Response, bool]:
    """What a submit and a read answer under which Redis is killed; whether neither was over yet."""
    with own_redis(tmp_path) as (server, api):
        path = api.http.post(ECHO_JOBS, json=1).headers["location"]
        began = time.monotonic()
        url, limit_s = f"{ECHO_JOBS}?wait={wait_s}", wait_s + 60
        own = pool.submit(api.http.post, url, json=2, timeout=limit_s)
        foreign = pool.submit(api.http.get, f"{path}?wait={wait_s}", timeout=limit_s)
        over_at = began + wait_s
        wait_until(
            lambda: api.services.waiters.count == 2 or time.monotonic() > over_at, "both wait"
        )
        with server.client() as client:
            wait_until(lambda: client.llen("headrace.echo") == 2, "both jobs are queued")
        server.stop(kill=True)
        in_time = time.monotonic() < over_at
        return own.result(limit_s), foreign.result(limit_s), in_time
