"""Large inputs and results in a real worker, over each store: fetched, stored, and gone in time."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery

from headrace.jobs.job import Job, State
from headrace.jobs.message import InputSource
from headrace.jobs.values.encoding import binary_input
from headrace.redis import keys
from tests.harness.clients.celery_client import GET_TIMEOUT_S, raw_message, send, stock_client
from tests.harness.clients.payloads import make_due, noted, submit_source, submit_stored
from tests.harness.deployments.worker_payloads import Site, site_over
from tests.harness.processes.processes import suspend
from tests.harness.servers.redis_servers import redis_server
from tests.harness.servers.s3 import s3_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import celery_worker, write_models

BODY = bytes(range(256)) * 400
MISSING = "redis:" + "0" * 32


#: Only S3 can be away while Redis is there.
only_over_s3 = pytest.mark.parametrize("_site", ["s3"], indirect=True)


@pytest.fixture(scope="module", params=["redis", "file", "s3"])
def _site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with site_over(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def site(_site: Site) -> Iterator[Site]:
    """A worker over each store in turn; a payload that a test leaves behind fails it."""
    yield _site
    _site.forget(*[key.decode()[7:] for key in _site.ours.redis.scan_iter("hr:job:*")] or ["none"])


@pytest.fixture(scope="module")
def redis_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_over("redis", tmp_path_factory.mktemp("redis-only")) as running:
        yield running


def test_a_large_input_and_result(site: Site) -> None:
    job_id = submit_stored(site.ours, site.stores, "echo", BODY, "image/png")
    job = site.ends(job_id)
    assert job.state is State.SUCCEEDED
    assert site.result(job) == BODY
    assert job.stored is not None
    assert job.stored.content_type == "application/octet-stream"  # as echo has it for bytes
    # The input is gone at once, the result stays as long as the record.
    name = job.stored.ref.partition(":")[2]
    wait_until(lambda: site.lying() == [name], "the input is dropped")
    ref = job.stored.ref
    wait_until(
        lambda: [text.partition(" ")[0] for text in noted(site.ours.redis)] == [ref],
        "and then its entry",
    )
    if site.kind == "redis":
        ttl_s = int(site.ours.redis.ttl(keys.payload(name)))
        assert 0 < ttl_s <= 600


def test_the_celery_result_of_a_large_one_says_where_it_is(site: Site) -> None:
    job = site.ends(submit_stored(site.ours, site.stores, "echo", b'"' + b"x" * 5000 + b'"', ""))
    assert json.loads(job.meta)["result"] == {
        "size": 5002,
        "content_type": "application/json",
        "url": f"/api/v1/jobs/{job.id}/result",
    }
    assert job.result_json is None
    assert site.result(job) == b'"' + b"x" * 5000 + b'"'


@pytest.mark.parametrize(
    ("body", "kind", "inline"),
    [
        (b'{"a": [1, 2.50, "\xc3\xa9"]}', "", b'{"a": [1, 2.50, "\xc3\xa9"]}'),
        (b'{"content_type":"image/png","base64":"iVBO"}', "", binary_input(b"\x89PN", "image/png")),
        (b"\x89PNG\x00\xff", "image/png", binary_input(b"\x89PNG\x00\xff", "image/png")),
        ("é\n".encode(), "text/plain; charset=utf-8", binary_input("é\n".encode(), "text/plain")),
        (b'{"x": 1}', "application/json", b'{"x": 1}'),
        (b'{"x": 1}', "application/ld+json", b'{"x": 1}'),
        (b"\xff", "text/plain", binary_input(b"\xff", "text/plain")),
    ],
)
def test_the_handler_sees_what_it_sees_of_an_inline_input(
    redis_site: Site, body: bytes, kind: str, inline: bytes
) -> None:
    stored = redis_site.ends(submit_stored(redis_site.ours, redis_site.stores, "echo", body, kind))
    there = redis_site.ends(redis_site.ours.submit_text("echo", inline))
    assert stored.state is there.state
    assert (stored.result_json, stored.result_type) == (there.result_json, there.result_type)
    assert stored.error_json == there.error_json


def test_small_neighbours_run_beside_a_large_one(site: Site) -> None:
    large = submit_stored(site.ours, site.stores, "echo", BODY)
    small = site.ours.submit("echo", *range(20))
    assert [site.ours.result(job.id) for job in site.ours.wait(*small)] == list(range(20))
    assert site.ends(large).state is State.SUCCEEDED


def error_of(job: Job) -> dict[str, Any]:
    assert job.state is State.FAILED, job
    found: dict[str, Any] = json.loads(job.error_json)
    return found


def test_a_payload_that_is_gone_is_the_jobs_own_error(site: Site) -> None:
    gone = InputSource(ref=site.kind + MISSING[5:], type="image/png", size=5)
    job_id = submit_source(site.ours, "echo", gone, max_retries=0)
    mates = site.ours.submit("echo", 1, 2, 3)
    error = error_of(site.ends(job_id))
    assert error["type"] == "input-unavailable"
    assert "is no longer in its store" in error["message"]
    assert [site.ours.result(job.id) for job in site.ours.wait(*mates)] == [1, 2, 3]


def test_a_payload_of_another_size_is_refused(redis_site: Site) -> None:
    job_id = submit_stored(redis_site.ours, redis_site.stores, "echo", BODY)
    ref = redis_site.ours.redis.hget(keys.job(job_id), "ir")
    other = submit_stored(redis_site.ours, redis_site.stores, "echo", BODY)
    assert redis_site.ends(other).state is State.SUCCEEDED
    lying = InputSource(ref=ref.decode(), type="", size=7) if ref else InputSource()
    error = error_of(redis_site.ends(submit_source(redis_site.ours, "one", lying, max_retries=0)))
    assert error["type"] == "input-unavailable"
    redis_site.ends(job_id)


@pytest.mark.parametrize(
    "own",
    [
        {"ref": "file:/etc/passwd"}, {"ref": "../../etc/passwd"}, {"ref": "redis:hr:token"},
        {"ref": "redis:" + "0" * 31}, {"ref": "redis:" + "0" * 32 + "\n"}, {"ref": "x" * 300},
    ],
)  # fmt: skip
def test_a_forged_reference_names_nothing(redis_site: Site, own: dict[str, Any]) -> None:
    body = json.dumps([[], {"model": "echo", "input": None}, {}])
    job_id = f"forged-{abs(hash(str(own)))}"
    redis_site.ours.redis.lpush(
        "headrace.echo", raw_message(job_id, body, headers={"headrace": own})
    )
    wait_until(lambda: redis_site.ours.redis.exists(keys.job(job_id)), "it is claimed")
    error = error_of(redis_site.ends(job_id))
    assert error["type"] == "invalid-request"
    assert "invalid payload reference" in error["message"]


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("file:/etc/passwd", "input-forbidden"), ("file:{root}/../x", "invalid-request"),
        ("s3://elsewhere/x", "input-forbidden"), ("file:{root}/gone", "input-unavailable"),
    ],
)  # fmt: skip
def test_a_forged_input_ref_is_checked_by_the_worker(
    redis_site: Site, origin: str, code: str
) -> None:
    named = InputSource(origin=origin.format(root=redis_site.folder / "inputs"))
    job_id = submit_source(redis_site.ours, "echo", named)
    assert error_of(redis_site.ends(job_id))["type"] == code


def test_a_file_of_the_operators_is_read_when_it_runs(redis_site: Site) -> None:
    path = redis_site.folder / "inputs" / "a.bin"
    path.write_bytes(b"late")
    source = InputSource(origin=f"file:{path}", type="image/png", size=4)
    job = redis_site.ends(submit_source(redis_site.ours, "echo", source))
    assert json.loads(job.result_json or b"")["__value__"] == base64.b64encode(b"late").decode()
    assert path.exists()


@only_over_s3
def test_an_object_of_the_operators_is_read(site: Site) -> None:
    assert site.s3 is not None
    site.s3.client.put_object(Bucket=site.input_bucket, Key="a/b c.txt", Body=b"text")
    source = InputSource(origin=f"s3://{site.input_bucket}/a/b c.txt", type="text/plain", size=4)
    assert site.ours.result(site.ends(submit_source(site.ours, "echo", source)).id) == "text"
    assert site.s3.keys(site.input_bucket) == ["a/b c.txt"]


def test_what_stands_inside_an_input_is_data(redis_site: Site) -> None:
    for value in ({"input_ref": "file:/etc/passwd"}, {"ref": MISSING}, {"headrace": {"ref": "x"}}):
        (job_id,) = redis_site.ours.submit("echo", value)
        redis_site.ends(job_id)
        assert redis_site.ours.result(job_id) == value


@pytest.mark.slow
@only_over_s3
def test_a_store_that_is_away_is_asked_again(site: Site) -> None:
    assert site.s3 is not None
    job_id = submit_stored(site.ours, site.stores, "echo", BODY)
    (block,) = site.ours.submit("one", 1)
    site.ends(block)
    site.ends(job_id)
    (gate,) = site.ours.submit("one", {"until": str(site.folder / "gate")})
    site.s3.stop()
    try:
        site.stores.index.note(site.stores.new_entry("x", "echo", "i"))
        lost = submit_source(
            site.ours, "echo", InputSource(ref="s3:" + "1" * 32, size=4), max_retries=0
        )
        error = error_of(site.ends(lost))
        assert error["type"] == "input-unavailable"
        assert "the S3 server does not answer" in error["message"]
        # A result that cannot be stored is that job's own error too; its neighbour runs on.
        unstored = site.ours.submit("echo", "y" * 5000, max_retries=0)
        assert error_of(site.ends(unstored[0]))["type"] == "result-not-stored"
        (small,) = site.ours.submit("echo", "small")
        assert site.ends(small).state is State.SUCCEEDED
    finally:
        site.s3.start_again()
        (site.folder / "gate").touch()
    site.ends(gate)


def test_a_cancelled_job_leaves_nothing(site: Site) -> None:
    gate = site.folder / "gate-cancel"
    blockers = site.ours.submit("one", *({"until": str(gate)} for _ in range(2)))
    waiting = submit_stored(site.ours, site.stores, "one", BODY)
    assert len(site.lying()) == 1
    assert site.ours._call("jobs/cancel", 0, waiting) == [b"removed"]
    wait_until(lambda: not site.lying(), "the input is swept")
    gate.touch()
    site.ours.wait(*blockers)


def test_a_worker_that_stops_gives_back_what_it_fetches(redis_site: Site) -> None:
    gate = redis_site.folder / "gate-stop"
    folder = redis_site.folder / "second"
    folder.mkdir()
    (blocker,) = redis_site.ours.submit("one", {"until": str(gate)})
    waiting = submit_stored(
        redis_site.ours, redis_site.stores, "one", b'"' + b"z" * 9999 + b'"', ""
    )
    lease = keys.lease("headrace.one")
    wait_until(lambda: redis_site.ours.redis.zcard(lease) == 2, "both are claimed")
    with celery_worker(
        redis_site.url, redis_site.models, folder, environ=redis_site.environ, node="cpu1@test"
    ) as second:
        second.wait_ready("one")
        redis_site.worker.process.send_signal(15)  # type: ignore[union-attr] # it runs
        assert redis_site.result(redis_site.ends(waiting)) == b'"' + b"z" * 9999 + b'"'
        gate.touch()
        redis_site.ends(blocker)
        redis_site.worker.stop()
    redis_site.worker.start()
    redis_site.worker.wait_ready("echo", "one")


@only_over_s3
def test_a_worker_stopped_while_it_fetches_cannot_settle_what_another_has_run(site: Site) -> None:
    assert site.s3 is not None
    redis, lease, port = site.ours.redis, keys.lease("headrace.echo"), urlsplit(site.s3.url).port
    redis.sadd(keys.PAUSED, "headrace.echo")
    job_id = submit_stored(site.ours, site.stores, "echo", BODY)
    folder = site.folder / "beside"
    folder.mkdir()
    site.s3.stop()
    try:
        with socket.create_server(("127.0.0.1", port or 0)):  # it never answers
            redis.srem(keys.PAUSED, "headrace.echo")
            wait_until(lambda: redis.zcard(lease) == 1, "it is claimed, and fetched")
            suspend(site.worker.pid)
        site.s3.start_again()
        # As though its lease had run out.
        redis.zadd(lease, {job_id: 1}, xx=True)
        with celery_worker(
            site.url, site.models, folder, node="cpu1@test",
            environ={**site.environ, "HEADRACE_LEASE_TTL_S": "1"},
        ):  # fmt: skip
            job = site.ends(job_id)
            assert (job.state, job.attempts) == (State.SUCCEEDED, 2)
            assert site.result(job) == BODY
            before = redis.hgetall(keys.job(job_id))
            os.kill(site.worker.pid, signal.SIGCONT)
            wait_until(lambda: site.worker.says("lease lost", job_id), "it is told")
            assert redis.hgetall(keys.job(job_id)) == before
    finally:
        os.kill(site.worker.pid, signal.SIGCONT)


@pytest.mark.parametrize("kind", ["redis", pytest.param("file", marks=pytest.mark.slow)])
def test_a_worker_killed_between_payload_and_settlement(tmp_path: Path, kind: str) -> None:
    with site_over(kind, tmp_path) as site:
        site.worker.stop()
        dying = tmp_path / "dying"
        dying.mkdir()
        job_id = submit_stored(site.ours, site.stores, "echo", BODY)
        environ = {**site.environ, "HEADRACE_LEASE_TTL_S": "1"}
        with celery_worker(
            site.url, site.models, dying, environ=environ, app="tests.harness.workers.killing_app"
        ) as killed:
            assert killed.process is not None
            assert killed.process.wait(60) == -9
        assert len(site.lying()) == 2
        assert site.ours.leased(job_id)
        # Nothing that is still needed is swept: the input is, and the job may yet be settled.
        make_due(site.ours.redis)
        site.stores.sweep()
        assert len(site.lying()) == 2
        site.worker.environ["HEADRACE_LEASE_TTL_S"] = "1"
        site.worker.start()
        job = site.ends(job_id)
        assert site.result(job) == BODY
        make_due(site.ours.redis)
        assert job.stored is not None
        name = job.stored.ref.partition(":")[2]
        wait_until(lambda: site.lying() == [name], "the input and the lost result are swept")
        site.forget(job_id)


@pytest.fixture
def app(redis_site: Site) -> Iterator[Celery]:
    with stock_client(redis_site.url) as client:
        yield client


def test_a_stock_clients_large_result_is_its_celery_result(redis_site: Site, app: Celery) -> None:
    value = "v" * 200_000
    result = send(app, "echo", value)
    assert result.get(timeout=GET_TIMEOUT_S) == value
    assert redis_site.ours.job(result.id).stored is None


def test_a_stock_clients_result_beyond_16_mib_lies_in_the_store(
    redis_site: Site, app: Celery
) -> None:
    value = "v" * (16 * 1024 * 1024)
    result = send(app, "echo", value)
    assert result.get(timeout=60) == {
        "size": len(value) + 2,
        "content_type": "application/json",
        "url": f"/api/v1/jobs/{result.id}/result",
    }
    job = redis_site.ends(result.id)
    assert redis_site.result(job) == b'"' + value.encode() + b'"'


def test_a_missing_bucket_stops_the_worker_with_a_sentence(tmp_path: Path) -> None:
    models = write_models(tmp_path, echo={"handler": "echo"})
    with s3_server() as server, redis_server() as redis:
        environ = {
            "HEADRACE_PAYLOAD_STORE": "s3",
            "HEADRACE_PAYLOAD_BUCKET": "nowhere",
            "HEADRACE_PAYLOAD_ENDPOINT_URL": server.url,
        }
        with celery_worker(redis.url, models, tmp_path, environ=environ) as worker:
            assert worker.process is not None
            assert worker.process.wait(60) != 0
            assert "headrace: payload_bucket: the S3 server has no bucket nowhere" in worker.log
            assert "Traceback" not in worker.log
