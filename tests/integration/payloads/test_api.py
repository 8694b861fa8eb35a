"""Large inputs and results over HTTP, with a real worker behind; ranges."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from celery import Celery
from celery.result import AsyncResult

from headrace.redis import keys
from tests.harness.clients.celery_client import GET_TIMEOUT_S, stock_client
from tests.harness.clients.payloads import noted, payload_keys
from tests.harness.deployments.payloads import BODY, JSON_BODY, LIMIT, Site, ended, payload_site
from tests.harness.http.plain_http import PLAIN
from tests.harness.wait import wait_until


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with payload_site(tmp_path_factory.mktemp("payloads")) as running:
        yield running


@pytest.mark.parametrize(
    ("body", "kind", "comes_back"),
    [
        (BODY, "application/octet-stream", "application/octet-stream"),
        (BODY, "image/png", "application/octet-stream"),
        (JSON_BODY, "application/json", "application/json"),
        (JSON_BODY, "", "application/json"),
    ],
)
def test_a_large_input_comes_back_byte_for_byte(
    site: Site, body: bytes, kind: str, comes_back: str
) -> None:
    job = ended(site.post(body, kind, wait=30))
    assert job["result"] is None
    answer = site.raw(job)
    assert answer.headers["content-type"] == comes_back
    if comes_back == "application/json":
        assert answer.json() == json.loads(body)
        assert job["result_size"] == len(answer.content)
    else:
        assert (answer.content, job["result_size"]) == (body, len(body))
    assert answer.headers["content-length"] == str(job["result_size"])


def test_the_message_of_a_large_input_is_small(site: Site) -> None:
    answer = site.post(BODY, "image/png", countdown=3600)
    job = answer.json()
    message = json.loads(site.ours.redis.hget("hr:parked:headrace.echo", job["id"]))
    own = message["headers"]["headrace"]
    assert own["type"] == "image/png"
    assert own["size"] == len(BODY)
    assert json.loads(message["body"])[1] == {"model": "echo", "input": None}
    assert len(json.dumps(message)) < LIMIT * 2
    name = own["ref"].partition(":")[2]
    assert site.ours.redis.get(keys.payload(name)) == BODY
    site.api.http.delete(job["urls"]["self"])
    wait_until(lambda: not site.ours.redis.exists(keys.payload(name)), "its input is swept")


def test_a_multipart_part(site: Site) -> None:
    answer = site.api.http.post(
        "/api/v1/models/echo/jobs",
        params={"wait": 30},
        files={"data": ("x.png", BODY, "image/png")},
    )
    assert site.raw(ended(answer)).content == BODY


def test_a_large_input_in_json(site: Site) -> None:
    answer = site.api.http.post(
        "/api/v1/jobs",
        content=b'{"model": "echo", "input": %s}' % JSON_BODY,
        params={"wait": 30},
    )
    assert site.raw(ended(answer)).json() == json.loads(JSON_BODY)


def test_the_limit_itself(site: Site) -> None:
    fits = b'"' + b"x" * (LIMIT - 2) + b'"'
    job = ended(site.post(fits, "application/json", wait=30))
    assert job["result"] == "x" * (LIMIT - 2)
    assert "result_size" not in job
    longer = ended(site.post(fits[:-1] + b'x"', "application/json", wait=30))
    assert (longer["result"], longer["result_size"]) == (None, LIMIT + 1)


def test_a_repeat_leaves_one_input(site: Site) -> None:
    before = set(payload_keys(site.ours.redis))
    path = "/api/v1/models/echo/jobs"
    headers = {"idempotency-key": "large", "content-type": "image/png"}
    options = {"countdown": "3600"}
    answers = [
        site.api.http.post(path, content=BODY, headers=headers, params=options) for _ in range(3)
    ]
    assert [answer.headers.get("idempotency-replayed") for answer in answers] == [
        None, "true", "true",
    ]  # fmt: skip
    assert len({answer.json()["id"] for answer in answers}) == 1
    other = site.api.http.post(path, content=BODY[1:], headers=headers, params=options)
    assert other.status_code == 409
    typed = {**headers, "content-type": "image/jpeg"}
    assert site.api.http.post(path, content=BODY, headers=typed, params=options).status_code == 409
    assert len(set(payload_keys(site.ours.redis)) - before) == 1
    site.api.http.delete(answers[0].json()["urls"]["self"])


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1), ("bytes=100-299999", 100, 300_000), ("bytes=-5", 767_995, 768_000),
        ("bytes=767999-", 767_999, 768_000), ("bytes=700000-99999999", 700_000, 768_000),
    ],
)  # fmt: skip
def test_a_range_of_a_large_result(site: Site, asked: str, start: int, end: int) -> None:
    job = ended(site.post(BODY, "image/png", wait=30))
    answer = site.raw(job, range=asked)
    assert answer.status_code == 206
    assert answer.content == BODY[start:end]
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(BODY)}"
    assert answer.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("body", [BODY, b'"small"'])
def test_ranges_by_the_rules(site: Site, body: bytes) -> None:
    kind = "image/png" if body is BODY else "application/json"
    job = ended(site.post(body, kind, wait=30))
    whole = site.raw(job)
    assert (whole.status_code, whole.content) == (200, body)
    assert whole.headers["accept-ranges"] == "bytes"
    etag = whole.headers["etag"]
    part = site.raw(job, range="bytes=1-3", **{"if-range": etag})
    assert (part.status_code, part.content) == (206, body[1:4])
    assert site.raw(job, range="bytes=1-3", **{"if-range": '"other"'}).content == body
    assert site.raw(job, range="bytes=0-1,3-4").status_code == 200
    refused = site.raw(job, range=f"bytes={len(body)}-")
    assert refused.status_code == 416
    assert refused.json()["type"] == "/problems/range-not-satisfiable"
    assert refused.headers["content-range"] == f"bytes */{len(body)}"
    head = site.api.http.head(job["urls"]["result"])
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(body))
    partial = site.api.http.head(job["urls"]["result"], headers={"range": "bytes=0-9"})
    assert partial.status_code == 206
    assert int(partial.headers["content-length"]) == min(10, len(body))


def test_a_result_that_was_deleted_is_a_problem(site: Site) -> None:
    job = ended(site.post(BODY, "image/png", wait=30))
    ref = site.ours.job(job["id"]).stored
    assert ref is not None
    site.ours.redis.delete(keys.payload(ref.ref.partition(":")[2]))
    answer = site.raw(job)
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/job-not-found")
    assert site.api.http.head(job["urls"]["result"]).status_code == 200


def test_a_result_that_ends_in_its_midst_is_cut(site: Site) -> None:
    large = BODY * 5
    job = ended(site.post(large, "image/png", wait=30))
    stored = site.ours.job(job["id"]).stored
    assert stored is not None
    key = keys.payload(stored.ref.partition(":")[2])
    wait_until(lambda: site.ours.redis.ttl(key) > 0, "it lives as long as its job")
    site.ours.redis.set(key, large[: 1024 * 1024], keepttl=True)
    with pytest.raises(httpx2.RemoteProtocolError):
        site.raw(job)
    assert site.api.http.get("/live").status_code == 200


def test_a_client_that_does_not_read_costs_no_memory(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than the kernel takes for both ends of a connection.
    large_bytes = 128 * 1024 * 1024
    job = ended(site.post(BODY, "image/png", wait=30))
    stored = site.ours.job(job["id"]).stored
    assert stored is not None
    key = keys.payload(stored.ref.partition(":")[2])
    site.ours.redis.setrange(key, large_bytes - 1, b"\0")
    record = f"{stored.ref} {large_bytes} image/png"
    site.ours.redis.hset(keys.job(job["id"]), "rr", record)
    reads: list[int] = []
    payloads = site.api.services.input_store
    real = payloads.read

    async def counted(*arguments: Any) -> bytes:
        found = await real(*arguments)
        reads.append(len(found))
        return found

    monkeypatch.setattr(payloads, "read", counted)
    with socket.create_connection(("127.0.0.1", site.api.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(f"GET {job['urls']['result']} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        wait_until(lambda: reads, "it begins")
        assert site.api.http.get("/live").status_code == 200
        seen = -1
        while seen != len(reads):  # until nothing more is read for a client that takes nothing
            seen = len(reads)
            for _ in range(20):
                site.api.http.get("/live")
        assert sum(reads) < large_bytes / 2


# input_ref


def test_what_stands_inside_an_input_is_data(site: Site) -> None:
    value = {"input_ref": "file:/etc/passwd", "ref": "redis:" + "0" * 32}
    answer = site.api.http.post(
        "/api/v1/jobs", json={"model": "echo", "input": value}, params={"wait": 30}
    )
    assert ended(answer)["result"] == value
    assert ended(site.post(json.dumps(value).encode(), wait=30))["result"] == value


# Stock clients


@pytest.fixture
def app(site: Site) -> Iterator[Celery]:
    with stock_client(site.api.redis_url) as client:
        yield client


def test_a_large_result_of_the_apis_job_by_a_stock_client(site: Site, app: Celery) -> None:
    job = site.post(BODY, "image/png").json()
    told: dict[str, Any] = AsyncResult(job["id"], app=app).get(timeout=GET_TIMEOUT_S)
    assert told == {
        "size": len(BODY),
        "content_type": "application/octet-stream",
        "url": job["urls"]["result"],
    }
    assert site.api.http.get(told["url"]).content == BODY


def test_many_large_jobs_at_once(site: Site) -> None:
    answers: list[bool] = []

    def one(n: int) -> None:
        body = bytes([n]) * 200_000
        with httpx2.Client(base_url=site.api.url, timeout=60, verify=PLAIN) as http:
            answer = http.post(
                "/api/v1/models/echo/jobs",
                content=body,
                headers={"content-type": "image/png"},
                params={"wait": 60},
            )
            job = ended(answer)
            answers.append(http.get(job["urls"]["result"]).content == body)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert answers == [True] * 40


def test_bulk_lines(site: Site) -> None:
    path = site.roots / "bulk.txt"
    path.write_bytes(b"named")
    lines: list[dict[str, Any]] = [
        {"model": "echo", "input": "small"},
        {"model": "echo", "input": "L" * 5000, "id": "bulk-large"},
        {"model": "echo", "input_ref": f"file:{path}"},
        {"model": "echo", "input_ref": "file:/etc/passwd"},
        {"model": "echo", "input": "L" * 5000, "id": "bulk-large"},
        {"model": "echo", "input": "M" * 5000, "id": "bulk-large"},
        {"model": "echo", "input": 1, "input_ref": f"file:{path}"},
    ]
    body = "\n".join(map(json.dumps, lines)).encode()
    answer = site.api.http.post("/api/v1/jobs/bulk", content=body)
    found = [json.loads(line) for line in answer.text.splitlines()]
    codes = [line.get("error", {}).get("type", "").rpartition("/")[2] for line in found]
    assert codes == ["", "", "", "input-forbidden", "", "conflict", "invalid-request"]
    assert found[1]["id"] == found[4]["id"] == "bulk-large"
    ends = [
        site.api.http.get(f"/api/v1/jobs/{found[n]['id']}", params={"wait": 30}).json()
        for n in (0, 1, 2)
    ]
    assert [job["result"] for job in ends] == ["small", None, "named"]
    assert site.raw(ends[1]).json() == "L" * 5000
    assert ends[1]["result_size"] == 5002
    # What the repeat and the conflict wrote is gone, and so is the input of what has run.
    wait_until(
        lambda: not [text for text in noted(site.ours.redis) if text.endswith(" i")],
        "no input is left",
    )
