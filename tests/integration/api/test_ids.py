"""Ids and idempotency keys of clients: one job, however often it is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from headrace.jobs.ids import id_of_key, is_id, new_id
from tests.harness.clients.script_calls import Queue, foreign
from tests.harness.fakes.proxy import proxy
from tests.harness.fakes.worker import Answer, FakeWorker, claim, settle
from tests.harness.http.problems import problem_of
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

JOBS = "/api/v1/jobs"
ECHO_JOBS = "/api/v1/models/echo/jobs"
BODY = {"model": "echo", "input": {"x": 1}}
RIVALS = 16


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(RIVALS) as executor:
        yield executor


def listed(server: RedisServer, model: str = "echo") -> int:
    with server.client() as client:
        return int(client.llen(f"headrace.{model}"))


def end_all(server: RedisServer, result: bytes = b'"done"', model: str = "echo") -> int:
    """Claim and settle whatever waits; how many jobs that were."""
    with server.client() as client:
        claimed = claim(client, model)
        settle(client, model, claimed, [Answer(result=result)] * len(claimed))
    return len(claimed)


def nobody_waits(api: ApiServer) -> None:
    """Who has its answer may be about to go."""
    wait_until(lambda: api.services.waiters.count == 0, "nobody waits any more")


def replayed(response: httpx2.Response) -> bool:
    """Whether an earlier request has submitted the job."""
    return response.headers.get("idempotency-replayed") == "true"


def test_a_repeat_is_the_same_job_whatever_became_of_it(
    api: ApiServer, redis_db: RedisServer
) -> None:
    job_id = "order-7:photo@2.jpg"
    path = f"{JOBS}/{job_id}"
    first = api.http.put(path, json=BODY)
    assert (first.status_code, replayed(first)) == (202, False)
    assert first.json()["id"] == job_id
    assert first.headers["location"] == first.json()["urls"]["self"] == path

    queued = api.http.put(path, json=BODY)
    assert (queued.status_code, replayed(queued)) == (202, True)
    assert (queued.json()["status"], queued.json()["queue_position"]) == ("queued", 1)
    assert queued.headers["location"] == path

    with redis_db.client() as client:
        claimed = claim(client, "echo")
        assert [message.id for message, _ in claimed] == [job_id]
        running = api.http.put(path, json=BODY)
        assert (running.json()["status"], replayed(running)) == ("running", True)
        settle(client, "echo", claimed, [Answer(result=b'"done"')])

    ended = api.http.put(path, json=BODY)
    assert (ended.status_code, replayed(ended)) == (200, True)
    assert ended.json() == api.http.get(path).json()
    assert ended.json()["result"] == "done"
    assert listed(redis_db) == 0
    metrics = api.http.get("/metrics").text
    assert 'headrace_jobs_admitted_total{model="echo"} 1.0' in metrics


def test_the_route_does_not_matter(api: ApiServer, redis_db: RedisServer) -> None:
    job_id = new_id()
    text = b'{"x":1.0,"big":123456789012345678901}'
    as_json = {"Content-Type": "application/json"}
    line = b'{"model":"echo","input":%s,"id":"%s"}' % (text, job_id.encode())
    answers = [
        api.http.post(JOBS, content=line, headers=as_json),
        api.http.put(f"{JOBS}/{job_id}", content=line, headers=as_json),
        api.http.put(
            f"{JOBS}/{job_id}", content=b'{"input":%s , "model":"echo"}' % text, headers=as_json
        ),
    ]
    assert [replayed(answer) for answer in answers] == [False, True, True]
    key = {"Idempotency-Key": "photo-1"}
    of_bytes = {"Content-Type": "image/png", **key}
    first = api.http.post(ECHO_JOBS, content=b"\x89PNG", headers=of_bytes)
    again = api.http.put(ECHO_JOBS, content=b"\x89PNG", headers=of_bytes)
    assert first.json()["id"] == again.json()["id"] == id_of_key("photo-1")
    assert replayed(again)
    key = {"Idempotency-Key": "json-1"}
    first = api.http.post(ECHO_JOBS, content=b" [1]\n", headers={**as_json, **key})
    again = api.http.post(JOBS, json={"model": "echo", "input": [1]}, headers=key)
    assert (first.json()["id"], replayed(again)) == (again.json()["id"], True)
    assert listed(redis_db) == 3
    end_all(redis_db)


def test_a_key_becomes_an_id() -> None:
    one, other = id_of_key("a"), id_of_key("b")
    assert one == id_of_key("a") != other
    for job_id in (one, other):
        assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-.{12}", job_id)
        assert is_id(job_id)


@pytest.mark.parametrize(
    "other",
    [
        {"model": "echo", "input": {"x": 2}},
        {"model": "echo", "input": {"x": 1}, "options": {"priority": 3}},
        {"model": "echo", "input": {"x": 1}, "options": {"metadata": {"a": 1}}},
        {"model": "echo", "input": {"x": 1}, "version": "1.0"},
        {"model": "tiny", "input": {"x": 1}},
    ],
)
def test_another_request_under_the_same_id_is_a_conflict(
    api: ApiServer, redis_db: RedisServer, other: dict[str, Any]
) -> None:
    for path, headers in ((f"{JOBS}/mine", {}), (JOBS, {"Idempotency-Key": "mine"})):
        method = "POST" if headers else "PUT"
        assert api.http.request(method, path, json=BODY, headers=headers).status_code == 202
        response = api.http.request(method, path, json=other, headers=headers)
        problem = problem_of(response, 409, "conflict")
        assert "was used before" in problem["detail"]
        assert replayed(api.http.request(method, path, json=BODY, headers=headers))
    assert end_all(redis_db) == 2
    assert listed(redis_db, "tiny") == 0


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "größe", "x" * 129, "..", ".", 'a"', "a\n"])
def test_an_id_that_no_job_can_have(api: ApiServer, redis_db: RedisServer, bad: str) -> None:
    problem = problem_of(api.http.post(JOBS, json={**BODY, "id": bad}), 422, "invalid-id")
    assert "1 to 128 of A-Z a-z 0-9 - _ . : @" in problem["remedy"]
    assert listed(redis_db) == 0


def test_an_id_in_the_path_that_no_job_can_have(api: ApiServer) -> None:
    for bad in ("a%20b", "%C3%B6", "x" * 129, "a%22"):
        problem_of(api.http.put(f"{JOBS}/{bad}", json=BODY), 422, "invalid-id")
        problem_of(api.http.get(f"{JOBS}/{bad}"), 404, "job-not-found")
    problem = problem_of(
        api.http.put(f"{JOBS}/a", json={**BODY, "id": "b"}), 400, "invalid-request"
    )
    assert "'a'" in problem["detail"]
    assert "'b'" in problem["detail"]


@pytest.mark.parametrize("bad", [b"", b"a b", b"\xc3\xb6", b"x" * 256])
def test_a_key_that_cannot_be_used(api: ApiServer, redis_db: RedisServer, bad: bytes) -> None:
    for path in (JOBS, ECHO_JOBS):
        response = api.http.post(path, json=BODY, headers=[(b"idempotency-key", bad)])
        problem = problem_of(response, 422, "invalid-id")
        assert "1 to 255 visible ASCII" in problem["remedy"]
    assert listed(redis_db) == 0


def test_an_id_and_a_key_are_one_too_many(api: ApiServer, redis_db: RedisServer) -> None:
    key = {"Idempotency-Key": "k"}
    for response in (
        api.http.put(f"{JOBS}/a", json=BODY, headers=key),
        api.http.post(JOBS, json={**BODY, "id": "a"}, headers=key),
    ):
        problem = problem_of(response, 400, "invalid-request")
        assert "both an id and an Idempotency-Key" in problem["detail"]
    assert listed(redis_db) == 0


def test_a_repeat_is_not_refused_for_a_full_queue(api: ApiServer, redis_db: RedisServer) -> None:
    body = {"model": "tiny", "input": 1}
    for n in range(100):
        assert api.http.put(f"{JOBS}/job-{n}", json=body).status_code == 202
    problem_of(api.http.put(f"{JOBS}/job-100", json=body), 429, "queue-full")
    for n in (0, 99):
        again = api.http.put(f"{JOBS}/job-{n}", json=body)
        assert (again.status_code, replayed(again)) == (202, True)
    problem_of(api.http.get(f"{JOBS}/job-100"), 404, "job-not-found")
    with FakeWorker(redis_db.url, "tiny") as worker:
        wait_until(lambda: len(worker.served) == 100, "all have ended")


def test_of_many_at_once_one_makes_the_job(
    api: ApiServer, redis_db: RedisServer, pool: ThreadPoolExecutor
) -> None:
    asked = [pool.submit(api.http.put, f"{JOBS}/same", json=BODY) for _ in range(RIVALS)]
    answers = [request.result(60) for request in asked]
    assert [answer.status_code for answer in answers] == [202] * RIVALS
    assert sum(not replayed(answer) for answer in answers) == 1
    assert len({answer.json()["created_at"] for answer in answers}) == 1
    assert end_all(redis_db) == 1


def test_every_waiting_request_is_answered_whichever_submitted_the_job(
    api: ApiServer, redis_db: RedisServer, pool: ThreadPoolExecutor
) -> None:
    path, prefer = f"{JOBS}/awaited", {"Prefer": "wait=30"}
    with api_server(redis_db.url, catalog(echo={})) as elsewhere:
        assert elsewhere.http.put(path, json=BODY).status_code == 202
        sites = (api, api, elsewhere)
        asked = [pool.submit(at.http.put, path, json=BODY, headers=prefer) for at in sites]
        for site, count in ((api, 2), (elsewhere, 1)):
            wait_until(lambda at=site: at.services.waiters.count == count, "they wait")  # type: ignore[misc]  # noqa: B023
        assert end_all(redis_db) == 1
        for request in asked:
            answer = request.result(60)
            assert (answer.status_code, replayed(answer)) == (200, True)
            assert answer.headers["preference-applied"] == "wait=30"
            assert answer.json()["result"] == "done"
        for site in (api, elsewhere):
            nobody_waits(site)
    again = api.http.put(path, json=BODY, headers=prefer)
    assert (again.status_code, again.json()["result"]) == (200, "done")


def test_the_first_of_several_waits_in_one_process(
    api: ApiServer, redis_db: RedisServer, pool: ThreadPoolExecutor
) -> None:
    path = f"{JOBS}/awaited?wait=30"
    asked = [pool.submit(api.http.put, path, json=BODY) for _ in range(4)]
    wait_until(lambda: api.services.waiters.count == 4, "four wait")
    # They do so before the first of them has said to Redis what it submits.
    wait_until(lambda: listed(redis_db) == 1, "the job is queued")
    assert end_all(redis_db) == 1
    answers = [request.result(60) for request in asked]
    assert [answer.json()["result"] for answer in answers] == ["done"] * 4
    assert sum(not replayed(answer) for answer in answers) == 1
    nobody_waits(api)


def test_the_job_of_a_celery_client_is_not_a_repeat(api: ApiServer, redis_db: RedisServer) -> None:
    job_id = new_id()
    with redis_db.client() as client:
        queue = Queue(client, "echo")
        queue.push(foreign(headers={"id": job_id}))
        queue.settle(*queue.claim().jobs)
    problem_of(api.http.put(f"{JOBS}/{job_id}", json=BODY), 409, "conflict")
    # Nor is a job that was submitted without an id of the client.
    plain = api.http.post(JOBS, json=BODY).json()["id"]
    problem_of(api.http.put(f"{JOBS}/{plain}", json=BODY), 409, "conflict")
    assert end_all(redis_db) == 1


def test_a_submit_repeated_after_an_unknown_outcome_is_one_job(redis_db: RedisServer) -> None:
    with (
        proxy(redis_db.port) as between,
        api_server(f"redis://127.0.0.1:{between.port}/0", catalog(echo={})) as api,
    ):
        assert api.http.post(ECHO_JOBS, json="warm").status_code == 202
        # The API tries a second time by itself; when that is lost too, nobody knows.
        between.lose_answer_to(b"who-knows", times=2)
        unknown = api.http.put(f"{JOBS}/who-knows", json=BODY)
        problem = problem_of(unknown, 503, "broker-unavailable")
        assert (problem["job"], between.lost) == ("who-knows", 2)
        again = api.http.put(f"{JOBS}/who-knows", json=BODY)
        assert (again.status_code, replayed(again)) == (202, True)
        assert end_all(redis_db) == 2


def test_an_id_is_free_again_once_its_record_has_run_out(
    api: ApiServer, redis_db: RedisServer
) -> None:
    path = f"{JOBS}/short"
    api.http.put(path, json=BODY)
    end_all(redis_db)
    with redis_db.client() as client:
        client.delete("hr:job:short", "celery-task-meta-short")
    other = api.http.put(path, json={**BODY, "input": 2})
    assert (other.status_code, replayed(other)) == (202, False)
    end_all(redis_db)
