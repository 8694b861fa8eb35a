"""Large inputs and results over HTTP, with a real worker behind; `input_ref`; ranges."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from celery import Celery
from celery.result import AsyncResult

from headrace import InputRef, errors, keys
from tests.harness.api_server import ApiServer, api_server, catalog
from tests.harness.celery_client import GET_TIMEOUT_S, stock_client
from tests.harness.clients import SHELLS, client_of
from tests.harness.payloads import make_due, noted, payload_keys, sweep_all
from tests.harness.redis_servers import RedisServer, free_port, leaked_keys, redis_server
from tests.harness.s3 import S3Server, s3_server
from tests.harness.wait import wait_until
from tests.harness.worker import ROOT, Client, celery_worker, write_models

LIMIT = 1000
BODY = bytes(range(256)) * 3000
JSON_BODY = json.dumps({"text": "é" * 3000, "n": [1.50, 2]}, ensure_ascii=False).encode()


@dataclass
class Site:
    """An API and a worker over one Redis, and both kinds of the operator's own storage."""

    api: ApiServer
    ours: Client
    roots: Path
    s3: S3Server
    bucket: str

    def post(self, body: bytes, kind: str = "", **options: Any) -> httpx2.Response:
        headers = {"content-type": kind} if kind else {}
        return self.api.http.post(
            "/api/v1/models/echo/jobs", content=body, headers=headers, params=options
        )

    def named(self, reference: str, **members: Any) -> httpx2.Response:
        body = {"model": "echo", "input_ref": reference, **members}
        return self.api.http.post("/api/v1/jobs", json=body, params={"wait": 30})

    def raw(self, job: dict[str, Any], **headers: str) -> httpx2.Response:
        return self.api.http.get(job["urls"]["result"], headers=headers)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("payloads")
    roots = folder / "roots"
    roots.mkdir()
    models = write_models(folder, echo={"handler": "echo"})
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        s3 = stack.enter_context(s3_server())
        bucket = s3.bucket("inputs")
        settings = {
            "inline_limit_bytes": LIMIT,
            "input_roots": (roots,),
            "input_buckets": (bucket,),
            "payload_endpoint_url": s3.url,
            "body_limit_bytes": 4 * 1024 * 1024,
        }
        environ = {
            f"HEADRACE_{name.upper()}": ",".join(map(str, value))
            if isinstance(value, tuple)
            else str(value)
            for name, value in settings.items()
        }
        worker = stack.enter_context(celery_worker(redis.url, models, folder, environ=environ))
        api = stack.enter_context(api_server(redis.url, catalog(echo={}), **settings))
        ours = stack.enter_context(Client(redis.url, models))
        worker.wait_ready("echo")
        yield Site(api, ours, roots, s3, bucket)
        wait_until(lambda: not leaked_keys(ours.redis), "no key without a TTL is left")


def ended(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    job: dict[str, Any] = response.json()
    assert job["status"] == "succeeded", job
    return job


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
    assert site.ours.redis.get(keys.PAYLOAD_PREFIX + name) == BODY
    site.api.http.delete(job["urls"]["self"])
    wait_until(lambda: not site.ours.redis.exists(keys.PAYLOAD_PREFIX + name), "its input is swept")


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
    site.ours.redis.delete(keys.PAYLOAD_PREFIX + ref.ref.partition(":")[2])
    answer = site.raw(job)
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/job-not-found")
    assert site.api.http.head(job["urls"]["result"]).status_code == 200


def test_a_result_that_ends_in_its_midst_is_cut(site: Site) -> None:
    large = BODY * 5
    job = ended(site.post(large, "image/png", wait=30))
    stored = site.ours.job(job["id"]).stored
    assert stored is not None
    key = keys.PAYLOAD_PREFIX + stored.ref.partition(":")[2]
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
    key = keys.PAYLOAD_PREFIX + stored.ref.partition(":")[2]
    site.ours.redis.setrange(key, large_bytes - 1, b"\0")
    record = f"{stored.ref} {large_bytes} image/png"
    site.ours.redis.hset(keys.job(job["id"]), "rr", record)
    reads: list[int] = []
    payloads = site.api.services.payloads
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


def test_a_file_of_the_operators(site: Site) -> None:
    path = site.roots / "a.png"
    path.write_bytes(BODY)
    job = ended(site.named(f"file:{path}"))
    assert site.raw(job).content == BODY
    assert path.read_bytes() == BODY


def test_the_type_of_a_named_file(site: Site) -> None:
    path = site.roots / "said.txt"
    path.write_bytes(b"words")
    assert ended(site.named(f"file:{path}"))["result"] == "words"
    data = ended(site.named(f"file:{path}", content_type="application/x-mine"))["result"]
    assert data == {"content_type": "application/octet-stream", "base64": "d29yZHM="}
    path.write_bytes(b'{"a": 1}')
    assert ended(site.named(f"file:{path}", content_type="application/json"))["result"] == {"a": 1}


def test_an_object_of_the_operators(site: Site) -> None:
    site.s3.client.put_object(Bucket=site.bucket, Key="x/é %.txt", Body=b"from afar")
    assert ended(site.named(f"s3://{site.bucket}/x/é %.txt"))["result"] == "from afar"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_client_names_inputs(site: Site, shell: str) -> None:
    names = [site.roots / f"{shell}{number}.txt" for number in range(3)]
    for path in names:
        path.write_text(path.name)
    site.s3.client.put_object(Bucket=site.bucket, Key="s.txt", Body=b"from afar")
    refs = [f"file:{path}" for path in names]
    with client_of(shell, site.api.url) as client:
        assert client.result(client.submit("echo", input_ref=refs[0])) == names[0].name
        as_bytes = client.submit("echo", input_ref=refs[0], content_type="application/x-mine")
        assert client.result(as_bytes) == names[0].name.encode()
        assert (
            client.result(client.submit("echo", InputRef(f"s3://{site.bucket}/s.txt")))
            == "from afar"
        )
        mixed = [InputRef(refs[1], "application/x-mine"), "as it is", *map(InputRef, refs[1:])]
        found = list(client.map("echo", mixed))
        assert [one.input for one in found] == mixed
        assert [one.value for one in found] == [
            names[1].name.encode(),
            "as it is",
            names[1].name,
            names[2].name,
        ]
        outside = f"file:{site.roots.parent}/secret"
        good, bad = client.submit_many("echo", [InputRef(refs[2]), InputRef(outside)])
        assert client.result(good) == names[2].name
        assert isinstance(bad, errors.InputForbidden)
        with pytest.raises(errors.InputForbidden):
            client.submit("echo", input_ref=outside)


def test_a_named_input_by_put(site: Site) -> None:
    (site.roots / "p.txt").write_bytes(b"put")
    body = {"model": "echo", "input_ref": f"file:{site.roots}/p.txt"}
    first, again = (
        site.api.http.put("/api/v1/jobs/mine", json=body, params={"wait": 30}) for _ in range(2)
    )
    assert ended(first)["result"] == ended(again)["result"] == "put"
    assert again.headers["idempotency-replayed"] == "true"
    other = {**body, "content_type": "image/png"}
    assert site.api.http.put("/api/v1/jobs/mine", json=other).status_code == 409


@pytest.mark.parametrize(
    ("reference", "status", "says"),
    [
        ("file:/etc/passwd", 403, "input_roots"),
        ("file:{roots}/../secret", 400, "in input_roots"),
        ("file:{roots}/%2e%2e/secret", 400, "is not there"),
        ("file:{roots}/..%2fsecret", 400, "is not there"),
        ("file:{roots}/link", 403, "symbolic link"),
        ("file:{roots}/folder/x", 403, "symbolic link"),
        ("file:{roots}/fifo", 400, "no regular file"),
        ("file:{roots}", 403, "input_roots"),
        ("file:{roots}/nothing", 400, "is not there"),
        ("file:{roots}/a\0.png", 400, "control characters"),
        ("file:relative", 400, "not absolute"),
        ("file://host{roots}/a.png", 400, "input_roots are"),
        ("file:{roots}/large", 413, "the limit is 4194304"),
        ("http://127.0.0.1/", 400, "neither file:/ nor s3://"),
        ("s3://private/x", 403, "input_buckets"),
        ("s3://{bucket}/../private/x", 400, "in input_buckets"),
        ("s3://{bucket}/nothing", 400, "is not there"),
        ("s3://{bucket}/large", 413, "the limit is 4194304"),
    ],
)
def test_what_may_not_be_named(site: Site, reference: str, status: int, says: str) -> None:
    (site.roots.parent / "secret").write_bytes(b"secret")
    if not (site.roots / "fifo").exists():
        os.mkfifo(site.roots / "fifo")
        (site.roots / "link").symlink_to("../secret")
        (site.roots / "folder").symlink_to("..")
        with (site.roots / "large").open("wb") as large:
            large.truncate(4 * 1024 * 1024 + 1)
        site.s3.client.put_object(Bucket=site.bucket, Key="large", Body=bytes(4 * 1024 * 1024 + 1))
    answer = site.named(reference.format(roots=site.roots, bucket=site.bucket))
    assert (answer.status_code, says in answer.json()["detail"]) == (status, True), answer.text


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"input": 1, "input_ref": "file:/x"}, "both an input and an input_ref"),
        ({}, "missing required field"),
        ({"content_type": "image/png"}, "missing required field"),
        ({"input": 1, "content_type": "image/png"}, "this request has an input"),
        ({"input_ref": "file:/x", "content_type": ""}, "content_type is empty"),
        ({"input_ref": 7}, "input_ref"),
    ],
)
def test_one_input_and_no_more(site: Site, members: dict[str, Any], says: str) -> None:
    answer = site.api.http.post("/api/v1/jobs", json={"model": "echo", **members})
    assert answer.status_code == 400
    assert says in answer.json()["detail"]


def test_a_type_that_is_none(site: Site) -> None:
    answer = site.named("file:/x", content_type="junk")
    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-media")


def test_a_file_that_is_gone_when_it_runs_is_the_jobs_error(site: Site) -> None:
    path = site.roots / "soon-gone"
    path.write_bytes(b"x")
    body = {"model": "echo", "input_ref": f"file:{path}", "options": {"countdown": 1}}
    job = site.api.http.post("/api/v1/jobs", json=body).json()
    path.unlink()
    answer = site.api.http.get(job["urls"]["self"], params={"wait": 30}).json()
    assert (answer["status"], answer["error"]["type"]) == ("failed", "input-unavailable")
    problem = site.raw(job)
    assert (problem.status_code, problem.json()["type"]) == (502, "/problems/input-unavailable")


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


# Trouble


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
    assert "headrace: payload_bucket: the S3 server has no bucket nowhere (" in done.stderr
    assert "Traceback" not in done.stderr


DYING_API = """
import os, signal, sys
from headrace.queue import JobQueue

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
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as http:
            wait_until(lambda: _live(http), "the API serves")
            with pytest.raises(httpx2.HTTPError):
                http.post("/api/v1/models/echo/jobs", content=BODY)
        assert dying.wait(10) == -signal.SIGKILL
        assert (lying(), len(noted(client))) == (1, 1)
        assert not list(client.scan_iter("hr:job:*"))
        settings: dict[str, Any] = {"payload_store": kind, "payload_dir": tmp_path}
        with api_server(redis_db.url, catalog(echo={}), **settings) as api:
            stores = api.services.payloads._stores
            assert stores.sweep() == 0  # its sender may only be slow
            make_due(client)
            assert stores.sweep() == 1
        assert (lying(), noted(client)) == (0, [])


def _live(http: httpx2.Client) -> bool:
    try:
        return http.get("/live").status_code == 200
    except httpx2.TransportError:
        return False


def test_many_large_jobs_at_once(site: Site) -> None:
    answers: list[bool] = []

    def one(n: int) -> None:
        body = bytes([n]) * 200_000
        with httpx2.Client(base_url=site.api.url, timeout=60) as http:
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
