"""Payload stores that are full, away or missing, and an API that dies between the two writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headrace.redis import keys
from headrace.server.ports import free_port
from tests.harness.clients.access import http_as, make_key
from tests.harness.clients.payloads import make_due, noted, payload_keys, sweep_all
from tests.harness.deployments.payloads import BODY
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.s3 import s3_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import ROOT


def test_a_full_store_answers_before_redis_is_full(redis_db: RedisServer) -> None:
    models = catalog(echo={"max_queue_depth": 100})
    with api_server(redis_db.url, models, max_payload_memory_bytes=100_000) as api:
        path = "/api/v1/models/echo/jobs"
        taken = api.http.post(path, content=bytes(60_000)).json()
        answer = api.http.post(path, content=bytes(60_000))
        assert (answer.status_code, answer.json()["type"]) == (
            507, "/problems/payload-storage-full",
        )  # fmt: skip
        assert int(answer.headers["retry-after"]) > 0
        assert "max_payload_memory_bytes" in answer.json()["remedy"]
        small = api.http.post(path, content=b"1").json()
        assert api.http.get("/api/v1/queues").json()["queues"][0]["depth"]["0"] == 2
        for job in (taken, small):
            api.http.delete(job["urls"]["self"])
        assert api.http.post(path, content=bytes(60_000)).status_code == 202
        sweep_all(api, redis_db, cancel=True)


def test_a_key_that_has_used_its_share_stops_no_other_key(redis_db: RedisServer) -> None:
    models = catalog(echo={"max_queue_depth": 100})
    settings: dict[str, Any] = {"auth": "on", "bulk_hold_s": 0.0, "payload_bytes_per_key": 200_000}
    (alice_id, alice), (bob_id, bob) = (make_key(redis_db) for _ in range(2))
    path, body = "/api/v1/models/echo/jobs", bytes(90_000)
    file: Any = {"purpose": (None, "batch"), "file": ("a.jsonl", body)}
    with (
        api_server(redis_db.url, models, **settings) as api,
        http_as(api, alice) as first,
        http_as(api, bob) as second,
    ):
        job = first.post(path, content=body, params={"countdown": 80_000}).json()
        stored = first.post("/v1/files", files=file).json()
        line = json.dumps({"model": "echo", "input": "x" * len(body)})
        refused = [
            first.post(path, content=body),
            first.post("/v1/files", files=file),
            first.put("/api/v1/jobs/mine-1", content=line),
        ]
        for answer in refused:
            assert answer.status_code == 507, answer.text
            text = answer.text
            assert alice_id in text
            assert "share" in text
            assert "payload_bytes_per_key" in text
        bulk = first.post("/api/v1/jobs/bulk", content=line).json()
        assert bulk["error"]["type"] == "/problems/payload-storage-full"
        assert first.post(path, content=b"small").status_code == 202
        answer = first.post(path, content=bytes(200_001))
        assert (answer.status_code, answer.json()["type"]) == (413, "/problems/payload-too-large")
        assert second.post(path, content=body).status_code == 202
        assert second.post("/v1/files", files=file).status_code == 200
        # What it deletes is free at once.
        assert first.delete(f"/v1/files/{stored['id']}").status_code == 200
        assert first.post(path, content=body).status_code == 202
        with redis_db.client() as client:
            sizes: Any = client.hgetall(keys.PAYLOAD_SIZES)
            for key_id in (alice_id, bob_id):
                assert int(sizes[f":{key_id}".encode()]) >= 180_000
            assert job["status"] == "scheduled"
            client.flushdb()


def test_what_the_store_can_never_take_is_not_to_be_tried_again(redis_db: RedisServer) -> None:
    with api_server(redis_db.url, catalog(echo={}), max_payload_memory_bytes=100_000) as api:
        answer = api.http.post("/api/v1/models/echo/jobs", content=bytes(100_001))
        assert (answer.status_code, answer.json()["type"]) == (413, "/problems/payload-too-large")
        assert "max_payload_memory_bytes" in answer.json()["detail"]
        assert "retry-after" not in answer.headers
        line = json.dumps({"model": "echo", "input": "x" * 100_000})
        answer = api.http.post("/api/v1/jobs/bulk", content=line)
        assert answer.json()["error"]["type"] == "/problems/payload-too-large"
        with redis_db.client() as client:
            assert (payload_keys(client), noted(client)) == ([], [])


def test_a_refused_submit_leaves_no_input(redis_db: RedisServer) -> None:
    with api_server(redis_db.url, catalog(echo={"max_queue_depth": 1})) as api:
        path = "/api/v1/models/echo/jobs"
        job = api.http.post(path, content=b"1").json()
        assert api.http.post(path, content=BODY).status_code == 429
        with redis_db.client() as client:
            assert payload_keys(client) == []
            assert noted(client) == []
        api.http.delete(job["urls"]["self"])
        sweep_all(api, redis_db)


def test_a_store_that_is_away_takes_no_submit(redis_db: RedisServer) -> None:
    with s3_server() as server:
        bucket = server.bucket("payloads")
        settings = {
            "payload_store": "s3",
            "payload_bucket": bucket,
            "payload_endpoint_url": server.url,
        }
        with api_server(redis_db.url, catalog(echo={}), **settings) as api:
            path = "/api/v1/models/echo/jobs"
            assert api.http.post(path, content=BODY).status_code == 202
            server.stop()
            answer = api.http.post(path, content=BODY)
            assert (answer.status_code, answer.json()["type"]) == (
                503, "/problems/store-unavailable",
            )  # fmt: skip
            assert answer.headers["retry-after"]
            assert api.http.get("/api/v1/queues").json()["queues"][0]["depth"]["0"] == 1
            assert api.http.post(path, content=b"1").status_code == 202
            server.start_again()
            sweep_all(api, redis_db, cancel=True)
            assert server.keys(bucket) == []


def test_a_missing_bucket_stops_the_api_with_a_sentence(redis_db: RedisServer) -> None:
    with s3_server() as server:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HEADRACE_REDIS_URL": redis_db.url,
            "HEADRACE_PORT": str(free_port()),
            "HEADRACE_PAYLOAD_STORE": "s3",
            "HEADRACE_PAYLOAD_BUCKET": "nowhere",
            "HEADRACE_PAYLOAD_ENDPOINT_URL": server.url,
        }
        done = subprocess.run(
            [sys.executable, "-m", "api"], env=environ, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 2
    assert "headrace: payload_bucket: the S3 server has no bucket nowhere. " in done.stderr
    assert "Traceback" not in done.stderr


DYING_API = """
import os, signal, sys
from headrace.queue.job_queue import JobQueue

async def die(self, job):
    os.kill(os.getpid(), signal.SIGKILL)

JobQueue.submit = die
from api.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("kind", ["redis", "file"])
def test_an_api_killed_between_payload_and_message(
    redis_db: RedisServer, tmp_path: Path, kind: str
) -> None:
    port = free_port()
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HEADRACE_REDIS_URL": redis_db.url,
        "HEADRACE_PORT": str(port),
        "HEADRACE_PAYLOAD_STORE": kind,
        "HEADRACE_PAYLOAD_DIR": str(tmp_path),
    }

    def lying() -> int:
        files = sum(path.is_file() for path in tmp_path.rglob("*"))
        return files + len(payload_keys(client))

    with (
        subprocess.Popen([sys.executable, "-c", DYING_API], env=environ) as dying,
        redis_db.client() as client,
    ):
        try:
            with httpx2.Client(
                base_url=f"http://127.0.0.1:{port}", timeout=60, verify=PLAIN
            ) as http:
                wait_until(lambda: _live(http), "the API serves", 90)
                with pytest.raises(httpx2.HTTPError):
                    http.post("/api/v1/models/echo/jobs", content=BODY)
            assert dying.wait(60) == -signal.SIGKILL
        finally:
            dying.kill()
        assert (lying(), len(noted(client))) == (1, 1)
        assert not list(client.scan_iter("hr:job:*"))
        settings: dict[str, Any] = {"payload_store": kind, "payload_dir": tmp_path}
        with api_server(redis_db.url, catalog(echo={}), **settings) as api:
            stores = api.services.input_store._stores
            assert stores.sweep() == 0  # its sender may only be slow
            make_due(client)
            assert stores.sweep() == 1
        assert (lying(), noted(client)) == (0, [])


def _live(http: httpx2.Client) -> bool:
    try:
        return http.get("/live").status_code == 200
    except httpx2.TransportError:
        return False
