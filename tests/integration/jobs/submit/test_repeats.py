"""A store that is full or away, and files that are gone: what it means for repeats and for bulk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.harness.clients.payloads import make_ended_due, payload_keys, sweep_all
from tests.harness.fakes.worker import FakeWorker
from tests.harness.http.bulk import BULK, ndjson
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.s3 import s3_server
from tests.harness.wait import wait_until

JOBS = "/api/v1/jobs"
#: Two of these inputs have room, and a third has none.
ROOM_BYTES = 100_000
LONG = "x" * 45_000
LARGE = {"model": "echo", "input": LONG}


@contextmanager
def cramped(redis_db: RedisServer, **settings: Any) -> Iterator[ApiServer]:
    """An API whose payload store soon has no room, or that of `settings`."""
    settings = {"max_payload_memory_bytes": ROOM_BYTES, **settings}
    with api_server(redis_db.url, catalog(echo={}), **settings) as api:
        yield api
        sweep_all(api, redis_db, cancel=True)


def said(answer: httpx2.Response) -> tuple[int, str, bool]:
    """The status, the job or the problem, and whether it is a repeat."""
    body = answer.json()
    what = body.get("id") or body["type"].rpartition("/")[2]
    return answer.status_code, what, answer.headers.get("idempotency-replayed") == "true"


def bulk(api: ApiServer, *lines: Any) -> list[Any]:
    """Of each line its job, or its problem."""
    answer = api.http.post(BULK, content=ndjson(lines), timeout=120)
    assert answer.status_code == 200, answer.text
    answers = [json.loads(line) for line in answer.text.splitlines()]
    return [
        one["id"] if "id" in one else one["error"]["type"].rpartition("/")[2] for one in answers
    ]


def test_a_repeat_whose_input_cannot_be_kept_again_is_the_same_job(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    path = tmp_path / "soon-gone.txt"
    path.write_bytes(b"named")
    named = {"model": "echo", "input_ref": f"file:{path}"}
    key = {"Idempotency-Key": "k"}
    with cramped(redis_db, input_roots=(tmp_path,), bulk_hold_s=0.1) as api:

        def put(name: str, body: Any, **query: Any) -> tuple[int, str, bool]:
            return said(api.http.put(f"{JOBS}/{name}", json=body, params=query))

        def keyed(body: str) -> tuple[int, str, bool]:
            url = "/api/v1/models/echo/jobs"
            return said(api.http.post(url, content=body.encode(), headers=key))

        assert put("large", LARGE) == (202, "large", False)
        assert put("named", named) == (202, "named", False)
        status, by_key, _ = keyed(LONG)
        assert status == 202
        path.unlink()

        # No room for either again, and no file.
        assert put("large", LARGE) == (202, "large", True)
        assert put("named", named) == (202, "named", True)
        assert keyed(LONG) == (202, by_key, True)
        other = {**LARGE, "options": {"priority": 3}}
        assert put("large", other) == (409, "conflict", False)
        assert put("named", {**named, "content_type": "image/png"}) == (409, "conflict", False)
        assert keyed(LONG + "x") == (409, "conflict", False)
        # What was never taken is refused as before.
        assert put("new", LARGE) == (507, "payload-storage-full", False)
        assert put("new", named) == (400, "invalid-request", False)
        lines = [
            {**LARGE, "id": "large"}, {**named, "id": "named"}, {**other, "id": "large"},
            {**LARGE, "id": "new"}, LARGE, named, {"model": "echo", "input": 1, "id": "small"},
        ]  # fmt: skip
        assert bulk(api, *lines) == [
            "large", "named", "conflict", "payload-storage-full", "payload-storage-full",
            "invalid-request", "small",
        ]  # fmt: skip
        metrics = api.http.get("/metrics").text
        assert 'headrace_jobs_admitted_total{model="echo"} 4.0' in metrics

        with FakeWorker(redis_db.url, "echo"):
            # Of a repeat that waits the end is told as of any other.
            assert put("large", LARGE, wait=30) == (200, "large", True)
            assert put("named", named, wait=30) == (200, "named", True)


def test_a_line_that_repeats_its_neighbour_needs_no_second_room(redis_db: RedisServer) -> None:
    with cramped(redis_db) as api:
        assert bulk(api, *[{**LARGE, "id": "twin"}] * 4) == ["twin"] * 4
        with redis_db.client() as client:
            assert len(payload_keys(client)) == 1


def test_a_full_store_holds_the_client_back_until_there_is_room(redis_db: RedisServer) -> None:
    # The API may get the body in parts, and reads no further while it holds lines back.
    lines = [{"model": "echo", "input": 1, "id": "small"}]
    lines += [{**LARGE, "id": f"large{n}"} for n in range(5)]
    with cramped(redis_db) as api, ThreadPoolExecutor(1) as pool, redis_db.client() as client:
        asked = pool.submit(bulk, api, *lines)
        wait_until(lambda: client.llen("headrace.echo") == 3, "what has room is queued")
        assert not asked.done()
        stores = api.services.input_store._stores
        with FakeWorker(redis_db.url, "echo") as worker:

            def answered() -> bool:
                make_ended_due(client)
                stores.sweep()
                return asked.done()

            wait_until(answered, "all had room", 60)
            assert asked.result() == [line["id"] for line in lines]
            assert sorted(worker.ran(6)) == sorted(asked.result()), "each ran once"


def test_a_store_that_is_away_holds_the_client_back_until_it_is_there(
    redis_db: RedisServer,
) -> None:
    with s3_server() as server:
        settings = {
            "payload_store": "s3",
            "payload_bucket": server.bucket("payloads"),
            "payload_endpoint_url": server.url,
        }
        # The API reads no further while it holds the large one back.
        lines = [{"model": "echo", "input": 1, "id": "small"}, {**LARGE, "id": "large"}]
        with cramped(redis_db, **settings) as api, ThreadPoolExecutor(1) as pool:
            server.stop()
            asked = pool.submit(bulk, api, *lines)
            with redis_db.client() as client:
                wait_until(lambda: client.llen("headrace.echo") == 1, "the small one is queued")
            assert not asked.done()
            server.start_again()
            assert asked.result(60) == ["small", "large"]
