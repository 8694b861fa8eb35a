"""One job: its object through its life, its result, its cancellation."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

import msgspec
import pytest

from headrace.jobs.job import State
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.fakes.worker import Answer, claim, failure, publish_state, settle
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

ECHO_JOBS = "/api/v1/models/echo/jobs"
ALWAYS = {
    "id", "model", "version", "status", "created_at", "started_at", "finished_at", "attempts",
    "queue_position", "batch_size", "timings", "metadata", "waiting_for", "trace_id",
    "urls",
}  # fmt: skip


def submitted(api: ApiServer, value: object = 1, query: str = "") -> str:
    """Submit one job; its path."""
    response = api.http.post(f"{ECHO_JOBS}?{query}" if query else ECHO_JOBS, json=value)
    assert response.status_code == 202, response.text
    return str(response.headers["location"])


def drained(redis_db: RedisServer) -> None:
    """Claim and settle all that waits, and drop what was cancelled."""
    with redis_db.client() as client:
        claimed = claim(client, "echo")
        settle(client, "echo", claimed, [Answer()] * len(claimed))


def ended(redis_db: RedisServer, answer: Answer) -> None:
    """Claim and settle the one job that waits."""
    with redis_db.client() as client:
        claimed = claim(client, "echo")
        assert len(claimed) == 1
        settle(client, "echo", claimed, [answer])


def test_a_job_through_its_life(api: ApiServer, redis_db: RedisServer) -> None:
    path = submitted(api, {"x": 1})
    response = api.http.get(path)
    assert response.status_code == 202
    assert response.headers["retry-after"] == "1"
    queued = response.json()
    assert queued.keys() == ALWAYS | {"waiting_reason"}
    assert queued["waiting_reason"] == "no worker runs"
    assert (queued["status"], queued["queue_position"], queued["attempts"]) == ("queued", 1, 0)
    assert queued["urls"] == {"self": path, "result": f"{path}/result"}
    assert api.http.get(f"{path}/result").status_code == 202
    with redis_db.client() as client:
        claimed = claim(client, "echo")
        running = api.http.get(path)
        assert (running.status_code, running.json()["status"]) == (202, "running")
        assert running.json()["attempts"] == 1
        assert running.json()["started_at"]
        settle(client, "echo", claimed, [Answer(result=b'{"y":[1.0,{}]}')])
    response = api.http.get(path)
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    done = response.json()
    assert done.keys() == ALWAYS | {"result", "worker"}
    assert (done["status"], done["result"], done["batch_size"]) == (
        "succeeded", {"y": [1.0, {}]}, 1,
    )  # fmt: skip
    times = [datetime.fromisoformat(done[f"{name}_at"]) for name in ("created", "started")]
    times.append(datetime.fromisoformat(done["finished_at"]))
    assert times == sorted(times)
    total_ms = (times[2] - times[0]).total_seconds() * 1000
    assert done["timings"] == {
        "queued": 1.5, "hold": 0.25, "device_wait": 0.0,
        "preprocess": 0.1, "inference": 2.0, "postprocess": 0.1,
        "total": pytest.approx(total_ms),
    }  # fmt: skip
    result = api.http.get(f"{path}/result")
    assert (result.status_code, result.content) == (200, b'{"y":[1.0,{}]}')
    assert result.headers["content-type"] == "application/json"
    head = api.http.head(path)
    assert (head.status_code, head.content) == (200, b"")


def test_positions_count_what_is_served_before(api: ApiServer, redis_db: RedisServer) -> None:
    paths = [submitted(api, n, f"priority={priority}") for n, priority in enumerate((3, 0, 3, 0))]
    positions = [api.http.get(path).json()["queue_position"] for path in paths]
    assert positions == [3, 1, 4, 2]
    drained(redis_db)


def test_a_result_that_is_not_json(api: ApiServer, redis_db: RedisServer) -> None:
    path = submitted(api)
    body = b"\x89PNG\r\n\x1a\n\0\xff"
    stored = {"__type__": "base64", "__value__": base64.b64encode(body).decode()}
    ended(
        redis_db,
        Answer(State.SUCCEEDED, msgspec.json.encode(stored), JobField.RESULT_TYPE, "image/png"),
    )
    result = api.http.get(f"{path}/result")
    assert (result.status_code, result.content) == (200, body)
    assert result.headers["content-type"] == "image/png"
    assert result.headers["x-content-type-options"] == "nosniff"
    assert api.http.get(path).json()["result"] == {
        "content_type": "image/png", "base64": base64.b64encode(body).decode(),
    }  # fmt: skip


def test_a_result_that_nobody_wanted(api: ApiServer, redis_db: RedisServer) -> None:
    path = submitted(api)
    ended(redis_db, Answer(ignore_result=True))
    assert api.http.get(path).json()["result"] is None
    result = api.http.get(f"{path}/result")
    assert (result.status_code, result.content) == (204, b"")
    # RFC 9110, 8.6: such an answer has no length.
    assert not {"content-length", "content-type", "transfer-encoding"} & result.headers.keys()


@pytest.mark.parametrize(
    ("code", "retryable", "status"),
    [
        ("input-error", False, 422),
        ("handler-error", False, 500),
        ("timeout", False, 504),
        ("out-of-memory", True, 507),
        ("transient-error", True, 503),
        ("replica-lost", False, 500),
        ("of-a-newer-version", False, 500),
        ("expired", False, 410),
    ],
)
def test_a_job_that_failed(
    api: ApiServer, redis_db: RedisServer, code: str, retryable: bool, status: int
) -> None:
    path = submitted(api)
    ended(redis_db, failure(code, 'the input "é" is bad', retryable=retryable))
    response = api.http.get(path)
    assert response.status_code == 200
    job = response.json()
    assert job.keys() == ALWAYS | {"error", "worker"}
    assert job["status"] == ("expired" if code == "expired" else "failed")
    assert job["error"] == {"type": code, "message": 'the input "é" is bad', "retryable": retryable}
    result = api.http.get(f"{path}/result")
    assert result.status_code == status
    assert result.headers["content-type"] == "application/problem+json"
    problem = result.json()
    assert problem["type"] == f"/problems/{code}"
    assert problem["detail"] == 'the input "é" is bad'
    assert (problem["status"], problem["job"]) == (status, job["id"])
    assert problem["instance"] == f"{path}/result"


def test_cancel_says_what_it_did(api: ApiServer, redis_db: RedisServer) -> None:
    path = submitted(api)
    job_id = path.rpartition("/")[2]
    response = api.http.delete(path)
    assert response.status_code == 200
    assert response.json() == {"id": job_id, "outcome": "removed", "status": "cancelled"}
    job = api.http.get(path)
    assert (job.status_code, job.json()["status"]) == (200, "cancelled")
    assert job.json()["error"]["type"] == "cancelled"
    result = api.http.get(f"{path}/result")
    assert (result.status_code, result.json()["type"]) == (410, "/problems/cancelled")
    again = api.http.delete(path)
    assert again.json() == {"id": job_id, "outcome": "ended", "status": "cancelled"}
    with redis_db.client() as client:
        assert claim(client, "echo") == []


def test_cancel_of_a_running_job_is_a_request(api: ApiServer, redis_db: RedisServer) -> None:
    path = submitted(api)
    with redis_db.client() as client:
        claimed = claim(client, "echo")
        response = api.http.delete(path)
        assert response.status_code == 202
        assert response.json()["outcome"] == "asked"
        assert response.json()["status"] == "running"
        job = api.http.get(path).json()
        assert (job["status"], job["cancel_requested"]) == ("running", True)
        settle(client, "echo", claimed, [Answer(result=b"1")])
    job = api.http.get(path).json()
    assert job["status"] == "cancelled"
    assert "cancel_requested" not in job


def test_an_expired_job_that_has_no_error_of_its_own(api: ApiServer, redis_db: RedisServer) -> None:
    path = submitted(api)
    ended(redis_db, Answer(State.EXPIRED))
    assert api.http.get(path).json()["error"]["type"] == "expired"
    assert api.http.get(f"{path}/result").status_code == 410


def test_a_job_that_nobody_serves_ends_at_its_expires(
    api: ApiServer, redis_db: RedisServer
) -> None:
    sent = api.http.post("/api/v1/models/echo/jobs?expires=0.2", json=1).json()
    assert sent["status"] == "queued"
    ended = api.http.get(f"/api/v1/jobs/{sent['id']}?wait=60").json()
    assert (ended["status"], ended["error"]["type"]) == ("expired", "expired")
    with redis_db.client() as client:
        assert not claim(client, "echo"), "what is left of its message is dropped"


@pytest.mark.parametrize(
    "job_id", ["nope", "01a1fc93-f547-759c-abee-baab683b7d49", "a" * 129, "%2e%2e", "a%20b", "é"]
)
def test_an_unknown_id(api: ApiServer, job_id: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/result")):
        response = api.http.request(method, f"/api/v1/jobs/{job_id}{path}")
        assert response.status_code == 404
        assert response.json()["type"] == "/problems/job-not-found"


def test_parameters_that_these_routes_do_not_take(api: ApiServer, redis_db: RedisServer) -> None:
    path = submitted(api)
    for method, query in (("GET", "wiat=1"), ("DELETE", "force=1"), ("GET", "wait=x")):
        response = api.http.request(method, f"{path}?{query}")
        assert (response.status_code, response.json()["type"]) == (400, "/problems/invalid-request")
    assert "did you mean wait?" in api.http.get(f"{path}?wiat=1").json()["detail"]
    drained(redis_db)


def test_methods_that_these_routes_do_not_take(api: ApiServer) -> None:
    for method, path, allowed in (
        ("GET", ECHO_JOBS, "POST, PUT"),
        ("DELETE", "/api/v1/jobs", "GET, HEAD, POST"),
        ("POST", "/api/v1/jobs/x", "GET, HEAD, PUT, DELETE"),
        ("DELETE", "/api/v1/jobs/x/result", "GET, HEAD"),
    ):
        response = api.http.request(method, path)
        assert response.status_code == 405
        assert response.headers["allow"] == allowed
        assert response.json()["type"] == "/problems/method-not-allowed"


def test_a_queued_job_without_a_loaded_replica_says_so(
    api: ApiServer, redis_db: RedisServer
) -> None:
    path = submitted(api)

    def waits_for(what: str | None) -> Any:
        # The API may remember what the workers said for a second.
        return wait_until(
            lambda: api.http.get(path).json()["waiting_for"] == what, f"waiting for {what}"
        )

    with redis_db.client() as client:
        waits_for("replica")
        publish_state(client, "w1", "echo", "loading", ready=0)
        waits_for("replica")
        publish_state(client, "w1", "echo", "ready")
        waits_for(None)
        response = api.http.post(ECHO_JOBS, json=2)
        assert response.json()["waiting_for"] is None
        client.delete(keys.worker("w1"))
        waits_for("replica")
    drained(redis_db)


def test_a_dead_letter_says_so(api: ApiServer, redis_db: RedisServer) -> None:
    path = submitted(api)
    job_id = path.rpartition("/")[2]
    ended(redis_db, failure("replica-lost", "died"))
    with redis_db.client() as client:
        client.hset(keys.job(job_id), JobField.DEAD, "1")
    assert api.http.get(path).json()["dead_lettered"] is True


def test_an_error_that_nobody_foresaw(
    api: ApiServer, redis_db: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    path = submitted(api)
    with redis_db.client() as client:
        client.hset(keys.job(path.rpartition("/")[2]), JobField.CREATED, "yesterday")
    response = api.http.get(path)
    problem = response.json()
    assert (response.status_code, problem["type"]) == (500, "/problems/internal-error")
    assert "yesterday" not in response.text
    assert "Traceback" not in response.text
    records = [record for record in caplog.records if vars(record).get("error_id") == problem["id"]]
    assert len(records) == 1
    assert records[0].exc_info is not None
    assert "yesterday" in str(records[0].exc_info[1])
    drained(redis_db)


def test_a_stock_job_that_waits_is_unknown_until_it_is_claimed(
    api: ApiServer, redis_db: RedisServer
) -> None:
    """A Celery client's message carries no record; the first claim writes it."""
    path = submitted(api)
    job_id = path.rpartition("/")[2]
    with redis_db.client() as client:
        client.delete(keys.job(job_id))
        assert api.http.get(path).status_code == 404
        claimed = claim(client, "echo")
        assert api.http.get(path).json()["status"] == "running"
        settle(client, "echo", claimed, [Answer(result=b"5")])
    assert api.http.get(path).json()["result"] == 5
