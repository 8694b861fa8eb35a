"""Pipelines under kill -9 of background worker, worker and Redis: each job ends once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.redis import keys
from headrace.server.recovery import release_incarnation
from tests.harness.clients.celery_client import send, stock_client
from tests.harness.deployments.pipelines import PipelineSite, pipeline_site, write_site
from tests.harness.processes.processes import suspend
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.wait import wait_until
from workers.background.pipelines.stage_state import stage_job_id

PIPELINES: dict[str, Any] = {
    "pieces": {"stages": {"cut": {}, "weigh": {"each": "pieces[*]"}}, "max_running": 8}
}
PIECES = 4
HASTE_S = 4.0
#: What scripts have ended of a pipeline's jobs, and left to a background worker.
ENDS = [prefix(keys.queue_name("pieces")) for prefix in (keys.orphaned, keys.orphaned_ends)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PipelineSite]:
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    one_at_a_time = {"max_batch_size": 1}
    with (
        redis_server("valkey9", *durable) as server,
        pipeline_site(server, tmp_path, PIPELINES, weigh=one_at_a_time) as running,
    ):
        yield running
        running.no_payloads()
        with server.client() as client:
            nothing_leaks(client)


def write_hasty(folder: Path) -> Path:
    """The same models and pipelines, but that these are to be over soon."""
    hasty = {name: {**one, "timeout_s": HASTE_S} for name, one in PIPELINES.items()}
    (folder / "hasty").mkdir()
    return write_site(folder / "hasty", hasty, weigh={"max_batch_size": 1})


def weighed(size: int) -> list[dict[str, int]]:
    return [{"first": n, "bytes": size} for n in range(PIECES)]


def have_run(site: PipelineSite, count: int) -> bool:
    return len(site.runs("weigh")) >= count


def test_a_kill_between_two_stages_runs_neither_again(site: PipelineSite) -> None:
    first = site.background_worker("first")
    site.gate.touch()
    job_id = site.submit("pieces", {"pieces": PIECES, "size": 30_000})
    wait_until(lambda: len(site.runs("cut")) == 1, "the cut runs", 60)
    first.kill()
    site.gate.unlink()
    with site.server.client() as client:
        # It ends, and nobody is there who would go on.
        ended = keys.stats("cut")
        wait_until(lambda: client.hget(ended, "ended:succeeded") == b"1", "the cut ends", 60)
    # Its lease may have run out by now.
    assert site.job(job_id)["status"] in ("running", "queued")
    site.background_worker("second")
    assert site.result(job_id) == weighed(30_000)
    assert len(site.runs("cut")) == 1
    assert len(site.runs("weigh")) == PIECES


@pytest.mark.parametrize("is_", ["running", "queued"])
def test_the_stages_of_a_job_that_is_cancelled_without_its_worker_are_cancelled_by_the_next(
    site: PipelineSite, is_: str
) -> None:
    first = site.background_worker("first")
    site.gate.touch()
    job_id = site.submit("pieces", {"pieces": PIECES, "size": 1})
    wait_until(lambda: len(site.runs("cut")) == 1, "the cut runs", 60)
    stage_job = stage_job_id(job_id, "cut", 0)
    if is_ == "running":
        # Its worker does not learn of the cancel.
        suspend(first.pid)
        site.api.http.delete(f"/api/v1/jobs/{job_id}")
    first.kill()
    # As the supervisor of the dead one does at once.
    release_incarnation(site.server.url, "first", None)
    if is_ == "queued":
        assert site.job(job_id)["status"] == "queued"
        site.api.http.delete(f"/api/v1/jobs/{job_id}")
    assert site.job(job_id)["status"] == "cancelled"
    wait_until(lambda: site.job(stage_job)["status"] == "running", "it is shown as running", 60)
    site.background_worker("second")
    with site.server.client() as client:
        record = keys.job(stage_job)
        wait_until(lambda: client.hget(record, "cr"), "the stage's job is cancelled", 60)
        wait_until(lambda: not client.exists(*ENDS), "nothing is left to do", 60)
    site.gate.unlink()
    assert site.ended(stage_job)["status"] == "cancelled"
    assert site.runs("weigh") == []


def test_a_redis_that_is_slow_to_tell_lengths_leaves_no_job_behind(site: PipelineSite) -> None:
    # More than run at once: what is left is found without anybody pushing anew.
    ids = [site.submit("pieces", {"pieces": 1, "size": 10}) for _ in range(20)]
    site.background_worker("late", "tests.harness.workers.late_background")
    for job_id in ids:
        assert len(site.result(job_id)) == 1


def test_a_stop_in_order_hands_on_at_once(site: PipelineSite) -> None:
    first = site.background_worker("first")
    site.gate.touch()
    job_id = site.submit("pieces", {"pieces": PIECES, "size": 1})
    wait_until(lambda: len(site.runs("cut")) == 1, "the cut runs", 60)
    assert first.stop() == 0
    wait_until(lambda: site.job(job_id)["status"] == "queued", "it is given back", 60)
    site.gate.unlink()
    site.background_worker("second")
    assert site.result(job_id) == weighed(1)
    assert site.job(job_id)["attempts"] == 1
    assert len(site.runs("cut")) == 1


def test_who_stood_still_past_the_jobs_deadline_leaves_it_to_who_has_gone_on_with_it(
    site: PipelineSite, tmp_path: Path
) -> None:
    """Its timeout is over, and so is its lease: it asks whose the job is before it ends it."""
    second = site.background_worker("second")
    site.models = write_hasty(tmp_path)
    first = site.background_worker("first", HEADRACE_LEASE_TTL_S="1")
    queue = keys.queue_name("cut")
    with site.server.client() as client, stock_client(site.server.url) as app:
        client.sadd(keys.PAUSED, queue)
        suspend(second.pid)
        # It has no timeout of its own, so that each of the two goes by its models file.
        job_id = send(app, "pieces", {"pieces": PIECES, "size": 1}).id
        wait_until(lambda: client.llen(queue) == 1, "its first stage waits", 60)
        began = time.monotonic()
        suspend(first.pid)
        os.kill(second.pid, signal.SIGCONT)
        wait_until(lambda: site.job(job_id)["attempts"] >= 2, "another goes on with it", 60)
        wait_until(lambda: time.monotonic() > began + HASTE_S, "the first one's time is over", 60)
        os.kill(first.pid, signal.SIGCONT)
        wait_until(
            lambda: first.says("another worker has resumed", job_id), "the first leaves it", 60
        )
        client.srem(keys.PAUSED, queue)
    assert site.result(job_id) == weighed(1)
    assert len(site.runs("cut")) == 1


def test_kills_of_everything_while_jobs_are_between_their_stages(site: PipelineSite) -> None:
    worker = site.background_worker("background-0")
    sizes = [1, 30_000] * 8
    ids = [site.submit("pieces", {"pieces": PIECES, "size": size}) for size in sizes]
    for n in range(1, 4):
        # At a quarter, a half and three quarters of the way.
        quarter = n * len(ids)
        wait_until(partial(have_run, site, quarter), f"{n} quarters have run", 120)
        worker.kill()
        site.worker.kill()
        site.server.stop(kill=True)
        site.server.start()
        site.worker.start()
        worker = site.background_worker(f"background-{n}")
    for job_id, size in zip(ids, sizes, strict=True):
        assert site.result(job_id) == weighed(size)
    with site.server.client() as client:
        counted = client.hgetall(keys.stats("pieces"))
        assert int(counted[b"ended:succeeded"]) == len(ids)
        assert not [name for name in counted if name in (b"ended:failed", b"ended:cancelled")]
        client.delete("hr:payloads", "hr:payloads:size", *client.scan_iter("hr:payload:*"))
