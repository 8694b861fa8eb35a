"""What the API says while Redis is away, full or slow to answer, and under too much work."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter

import httpx2
import pytest

from api.openapi import document
from headrace.registry.model import DeclaredModels
from tests.harness.fakes.proxy import proxy
from tests.harness.fakes.worker import FakeWorker
from tests.harness.http.problems import problem_of
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until

ECHO_JOBS = "/api/v1/models/echo/jobs"
BURST = 1500
FILE_ID = "file-" + "0" * 32


#: The least that these routes take.
BODIES = {
    ("POST", "redeliver"): b"",
    ("PATCH", "echo"): b'{"default_version": "1.0"}',
    ("PUT", "1.0"): b'{"options": {"handler": "echo"}}',
    ("PUT", "traffic"): b'{"weights": {"1.0": 1}}',
    ("PUT", "run-1"): b'{"model": "echo"}',
}


def _routes_that_ask_redis(job: str) -> list[tuple[str, str]]:
    """Method and path of every documented route that may answer 503, on the job at that path."""
    names = {
        "model": "echo",
        "version": "1.0",
        "job_id": job.rpartition("/")[2],
        "name": "headrace.echo",
        "run_id": "run-1",
        "file_id": FILE_ID,
        "batch_id": "batch_" + "0" * 32,
        "profile_id": "0" * 16,
        "response_id": "resp_1",
        "group": "echo." + "0" * 12,
        "worker": "cpu0@nowhere",
        "key": "0" * 8,
    }
    return [
        (method.upper(), path.format_map(names))
        for path, methods in document("any")["paths"].items()
        for method, operation in methods.items()
        if method != "parameters"
        and "503" in operation["responses"]
        # The names of the models are in the API process. Without keys, these routes ask nothing.
        and not path.startswith(("/v1/models", "/api/v1/keys"))
    ]


#: Bodies of requests by OpenAI's conventions, by path.
OPENAI_BODIES = {
    "/v1/chat/completions": b'{"model": "echo", "messages": [{}]}',
    "/v1/completions": b'{"model": "echo", "prompt": "a"}',
    "/v1/responses": b'{"model": "echo", "input": "a"}',
    "/v1/embeddings": b'{"model": "echo", "input": "a"}',
}


def _body_for(method: str, path: str) -> bytes:
    asked = (method, path.rpartition("/")[2])
    if path in OPENAI_BODIES or asked in BODIES:
        return OPENAI_BODIES[path] if path in OPENAI_BODIES else BODIES[asked]
    match asked:
        case "POST", "cancel" if "/jobs/" not in path:
            return b""
        case "POST", "profile":
            return b"{}"
        case "POST", "retry" | "discard" if "/failures/" in path:
            return b'{"count": 1}'
        case "POST", "retry" | "drain" | "resume" if "/jobs/" in path or "/workers/" in path:
            return b""
        case "POST", "status" | "cancel" | "outcomes" | "forget":
            return b'{"ids": ["a"]}'
        case "POST", "batches":
            return json.dumps(
                {
                    "input_file_id": FILE_ID,
                    "endpoint": "/api/v1/jobs",
                    "completion_window": "24h",
                }
            ).encode()
        case "POST", "requeue" | "purge" if "dead-letters" in path:
            return b'{"all": true}'
        case ("POST", _) | ("PUT", _) if "/models/" not in path and "/queues/" not in path:
            return b'{"model": "echo", "input": 1}'
        case _:
            return b"1"


def _asked(http: httpx2.Client, method: str, where: str) -> httpx2.Response:
    if (method, where) == ("POST", "/v1/files"):
        return http.post(where, files={"file": ("a.jsonl", b"{}")}, data={"purpose": "batch"})
    return http.request(method, where, content=_body_for(method, where))


def test_while_redis_is_away() -> None:
    declared = DeclaredModels({"echo": ("1.0", {"handler": "echo"})}, "1")
    with (
        redis_server("valkey9") as server,
        api_server(server.url, catalog(echo={}), declared, model_api=True) as api,
    ):
        path = api.http.post(ECHO_JOBS, json=1).headers["location"]
        server.stop()
        waits = [("POST", f"{ECHO_JOBS}?wait=1"), ("GET", f"{path}?wait=1")]
        for method, where in (*waits, *_routes_that_ask_redis(path)):
            response = _asked(api.http, method, where)
            assert int(response.headers.get("retry-after", 0)) >= 1, (method, where, response.text)
            if where.startswith("/v1/"):
                assert response.status_code == 503, response.text
                assert response.json()["error"]["code"] == "broker-unavailable"
                continue
            problem = problem_of(response, 503, "broker-unavailable")
            assert str(server.port) not in response.text, "where Redis is concerns no client"
            submits = where.startswith(ECHO_JOBS) or (method, where) == ("POST", "/api/v1/jobs")
            submits = submits or (method == "PUT" and "/api/v1/jobs/" in where)
            submits = submits or where.endswith("/versions/1.0/jobs")
            assert ("job" in problem) == submits, where
        assert api.http.get("/live").status_code == 200
        metrics = api.http.get("/metrics")
        assert metrics.status_code == 200
        assert "headrace_broker_up 0\n" in metrics.text
        assert api.services.waiters.count == 0
        server.start()
        wait_until(lambda: api.http.get("/ready").status_code == 200, "Redis is found again")
        with FakeWorker(server.url, "echo"):
            assert api.http.post(f"{ECHO_JOBS}?wait=20", json=2).json()["result"] == 2


@pytest.mark.parametrize("flavour", ["valkey9", "redis62", "redis7"])
def test_when_redis_is_full(flavour: str) -> None:
    with redis_server(flavour) as server, api_server(server.url, catalog(echo={})) as api:
        path = api.http.post(ECHO_JOBS, json=1).headers["location"]
        with server.client() as client:
            client.config_set("maxmemory", 1)
            for where in (ECHO_JOBS, f"{ECHO_JOBS}?wait=5"):
                response = api.http.post(where, json=2)
                problem_of(response, 503, "broker-full")
                assert int(response.headers["retry-after"]) >= 1
            assert client.llen("headrace.echo") == 1
            assert api.http.get(path).json()["status"] == "queued"
            assert api.http.delete(path).json()["outcome"] == "removed"
            client.config_set("maxmemory", 0)
        assert api.http.post(ECHO_JOBS, json=3).status_code == 202


def test_an_answer_of_redis_that_is_lost_repeats_nothing(redis_db: RedisServer) -> None:
    with (
        proxy(redis_db.port) as between,
        api_server(f"redis://127.0.0.1:{between.port}/0", catalog(echo={})) as api,
    ):
        assert api.http.post(ECHO_JOBS, json="first").status_code == 202
        between.lose_answer_to(b"only-once")
        response = api.http.post(ECHO_JOBS, json="only-once")
        assert between.lost == 1
        assert response.status_code == 202
        with redis_db.client() as client:
            assert client.llen("headrace.echo") == 2
        assert api.http.get(response.headers["location"]).json()["queue_position"] == 2
        with FakeWorker(redis_db.url, "echo") as worker:
            wait_until(lambda: len(worker.served) == 2, "both ended")


def test_a_cancel_whose_answer_is_lost_says_that_it_has_cancelled(redis_db: RedisServer) -> None:
    with (
        proxy(redis_db.port) as between,
        api_server(f"redis://127.0.0.1:{between.port}/0", catalog(echo={})) as api,
    ):
        # Redis knows the script afterwards.
        api.http.delete(api.http.post(ECHO_JOBS, json=0).headers["location"])
        path = api.http.post(ECHO_JOBS, json=1).headers["location"]
        between.lose_answer_to(path.rpartition("/")[2].encode())
        assert api.http.delete(path).json()["outcome"] == "removed"
        assert between.lost == 1
        assert api.http.delete(path).json()["outcome"] == "ended"
        with FakeWorker(redis_db.url, "echo"), redis_db.client() as client:
            wait_until(lambda: not client.llen("headrace.echo"), "what was cancelled is dropped")


async def _burst(port: int) -> list[bytes]:
    """Submit BURST jobs at once, each on a connection of its own; the answers as they came."""

    async def submit(n: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /api/v1/models/tiny/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%d" % (len(str(n)), n)
        )
        answer = await reader.read()
        writer.close()
        return answer

    return await asyncio.gather(*(submit(n) for n in range(BURST)))


def test_a_burst_on_a_small_queue_is_answered_and_what_was_admitted_ends(
    api: ApiServer, redis_db: RedisServer
) -> None:
    answers = asyncio.run(_burst(api.port))
    assert Counter(answer[:12] for answer in answers) == {
        b"HTTP/1.1 202": 100, b"HTTP/1.1 429": BURST - 100,
    }  # fmt: skip
    admitted = []
    for answer in answers:
        head, _, body = answer.partition(b"\r\n\r\n")
        document = json.loads(body)
        if head.startswith(b"HTTP/1.1 202"):
            admitted.append(document["id"])
        else:
            assert document["type"] == "/problems/queue-full"
            assert re.search(rb"\r\nretry-after: [1-9]", head)
    with FakeWorker(redis_db.url, "tiny") as worker:
        for job_id in admitted:
            job = api.http.get(f"/api/v1/jobs/{job_id}?wait=30").json()
            assert job["status"] == "succeeded"
        wait_until(lambda: sorted(worker.served) == sorted(admitted), "each ran once")
    metrics = api.http.get("/metrics").text
    assert 'headrace_jobs_admitted_total{model="tiny"} 100.0' in metrics
    refused = f'headrace_jobs_rejected_total{{model="tiny",reason="queue-full"}} {BURST - 100}.0'
    assert refused in metrics
