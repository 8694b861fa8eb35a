"""Payload stores that refuse or hang: the worker goes on, and no job waits for ever."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from socket import create_server
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from api.submission import input_store
from headrace.jobs.job import Job, State
from headrace.payloads.stores import THREADS
from headrace.redis import keys
from tests.harness.clients.payloads import make_due, submit_stored, sweep_all
from tests.harness.deployments.worker_payloads import Site, site_over
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.s3 import S3Server, s3_server
from tests.harness.wait import wait_until

#: More transfers than the worker has threads for them.
MANY = THREADS + 4
BODY = bytes(60_000)


def error_of(job: Job) -> str:
    assert job.state is State.FAILED, job
    return str(json.loads(job.error_json)["type"])


def forget(site: Site, *ids: str) -> None:
    """As though nobody wanted the jobs any more, nor their dead letters."""
    raw: Any = site.ours.redis
    raw.delete(keys.dead("headrace.echo"), "none", *raw.scan_iter(f"{keys.letters}*"))
    site.forget(*ids)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A disk of this size at the folder; skips where it cannot be mounted."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True
    )
    if done.returncode:
        pytest.skip(f"only root mounts a small disk: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def hung(server: S3Server) -> Iterator[None]:
    """It accepts connections and answers nothing."""
    server.stop()
    try:
        with create_server(("127.0.0.1", urlsplit(server.url).port or 0), backlog=128):
            yield
    finally:
        server.start_again()


@pytest.mark.slow
def test_unreadable_inputs_fail_and_hold_up_no_other_job(tmp_path: Path) -> None:
    with site_over("file", tmp_path) as site:
        site.ours.redis.sadd(keys.PAUSED, "headrace.echo")
        ids = [
            submit_stored(site.ours, site.stores, "echo", BODY, max_retries=0) for _ in range(MANY)
        ]
        for path in [path for path in (tmp_path / "p").rglob("*") if path.is_file()]:
            # Not even root reads a folder.
            path.unlink()
            path.mkdir()
        site.ours.redis.srem(keys.PAUSED, "headrace.echo")
        good = submit_stored(site.ours, site.stores, "one", json.dumps({}).encode(), "")
        assert site.ends(good).state is State.SUCCEEDED
        assert {error_of(job) for job in site.ours.wait(*ids, timeout_s=120)} == {
            "input-unavailable"
        }
        (short,) = site.ours.submit("echo", 1)
        assert site.ends(short).state is State.SUCCEEDED
        for path in (tmp_path / "p").glob("*/*"):
            path.rmdir()
        forget(site, *ids, good, short)


@pytest.mark.slow
def test_a_disk_full_of_expired_results_is_swept_for_new_ones(tmp_path: Path) -> None:
    with small_disk(tmp_path / "p", "256k"), site_over("file", tmp_path) as site:
        old = site.ours.submit("echo", *(["x" * 60_000] * 4), result_ttl=3600)
        assert {job.state for job in site.ours.wait(*old)} == {State.SUCCEEDED}
        new = site.ours.submit("echo", *(["x" * 60_000] * MANY), max_retries=30, result_ttl=1)
        wait_until(lambda: "the disk of the payload store is full" in site.worker.log, "full", 60)
        # As though the old ones had expired.
        site.ours.redis.delete(*(keys.job(job_id) for job_id in old))
        make_due(site.ours.redis)
        # Their records may be over before anybody looks at them.
        ended = partial(site.ours.redis.hget, keys.stats("echo"), "ended:succeeded")
        wait_until(lambda: int(ended()) == len(old) + len(new), "all have ended well", 240)
        forget(site, *new)


def test_results_that_a_disk_can_never_take_end_their_jobs(tmp_path: Path) -> None:
    with small_disk(tmp_path / "p", "64k"), site_over("file", tmp_path) as site:
        ids = site.ours.submit("echo", *(["x" * 100_000] * MANY), max_retries=0)
        (short,) = site.ours.submit("echo", 1)
        assert site.ends(short).state is State.SUCCEEDED
        assert {error_of(job) for job in site.ours.wait(*ids, timeout_s=120)} == {
            "result-not-stored"
        }
        assert not [path for path in (tmp_path / "p").rglob("*") if path.is_file()]
        forget(site, *ids, short)


@pytest.mark.slow
def test_an_s3_server_that_hangs_ends_the_jobs_that_need_it(tmp_path: Path) -> None:
    with site_over("s3", tmp_path) as site:
        assert site.s3 is not None
        site.ours.redis.sadd(keys.PAUSED, "headrace.echo")
        ids = [
            submit_stored(site.ours, site.stores, "echo", BODY, max_retries=0) for _ in range(MANY)
        ]
        with hung(site.s3):
            site.ours.redis.srem(keys.PAUSED, "headrace.echo")
            (short,) = site.ours.submit("one", 1)
            assert site.ends(short).state is State.SUCCEEDED
            assert {error_of(job) for job in site.ours.wait(*ids, timeout_s=240)} == {
                "input-unavailable"
            }
        forget(site, *ids, short)


def test_a_submit_is_answered_while_its_s3_server_hangs(
    redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also more of them than the API has threads."""
    monkeypatch.setattr(input_store, "ANSWER_MAX_S", 1.0, raising=False)
    with s3_server() as server, ThreadPoolExecutor(MANY) as clients:
        settings = {
            "payload_store": "s3",
            "payload_bucket": server.bucket("payloads"),
            "payload_endpoint_url": server.url,
        }
        with api_server(redis_db.url, catalog(echo={}), **settings) as api:
            url = f"{api.url}/api/v1/models/echo/jobs"

            def submit(_: int) -> tuple[int, str]:
                answer = httpx2.post(url, content=BODY, timeout=30, verify=PLAIN)
                return answer.status_code, answer.json()["type"]

            with hung(server):
                answers = set(clients.map(submit, range(MANY)))
                assert answers == {(503, "/problems/store-unavailable")}
                assert api.http.post(url, content=b"1").status_code == 202
            sweep_all(api, redis_db, cancel=True)


def test_an_interrupted_write_leaves_no_file(tmp_path: Path) -> None:
    with small_disk(tmp_path / "p", "64k"), site_over("file", tmp_path) as site:
        with pytest.raises(Exception, match="full"):
            site.stores.put(site.stores.new_entry("x", "echo", "i"), bytes(100_000))
        assert not [path for path in (tmp_path / "p").rglob("*") if path.is_file()]
        make_due(site.ours.redis)
