"""A cancel of what a worker holds: seen before the device and between the verbs, without a poll."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from headrace.jobs.job import Job, State
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.clients.celery_client import stock_client, wait_until_handed_over
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.verbs import Bench, bench
from tests.harness.workers.worker import celery_worker

Cancel = Callable[[Bench, str], None]


def by_script(at: Bench, job_id: str) -> None:
    assert at.client._call("jobs/cancel", 0, job_id) == [b"asked"]


def revoke(app: Celery, job_id: str, **options: Any) -> None:
    """Revoke a job; again until the worker, which may still be subscribing, has answered."""
    wait_until(
        lambda: app.control.revoke(job_id, reply=True, timeout=1, limit=1, **options),
        "the worker has the revoke",
    )


def by_revoke(at: Bench, job_id: str) -> None:
    with stock_client(at.worker.redis_url) as app:
        revoke(app, job_id, terminate=True, signal="KILL")


def by_a_cancel_of_which_nothing_was_heard(at: Bench, job_id: str) -> None:
    """As after a publication that came while the connection was away."""
    at.client.redis.hset(keys.job(job_id), JobField.CANCEL, "1")


def ended(at: Bench, job_id: str) -> Job:
    wait_until(lambda: at.client.job(job_id).state.final, "it ends while the others still run")
    return at.client.job(job_id)


def claimed(at: Bench, *ids: str) -> None:
    wait_until(lambda: at.client.leased(*ids), "they are claimed")


@pytest.mark.parametrize("cancel", [by_revoke, by_a_cancel_of_which_nothing_was_heard])
def test_what_was_not_handed_over_ends_at_once_and_makes_room(
    redis_db: RedisServer, tmp_path: Path, cancel: Cancel
) -> None:
    # Of a lease of 60 s the next renewal comes after 20 s: who ends before was told.
    lease_s = "3" if cancel is by_a_cancel_of_which_nothing_was_heard else "60"
    environ = {"HEADRACE_LEASE_TTL_S": lease_s}
    with bench(redis_db, tmp_path, "InTurn", environ, max_batch_size=2) as at:
        running = at.submit({"name": "x", "inference": at.gate("x")})
        at.wait_for("inference x begins")
        a, b = at.submit({"name": "a"}, {"name": "b"})
        claimed(at, a, b)
        (c,) = at.submit({"name": "c"})
        cancel(at, a)
        job = ended(at, a)
        assert (job.state, job.attempts, job.started_us) == (State.CANCELLED, 0, 0)
        assert "inference x ends" not in at.lines()
        claimed(at, c)
        at.open("x")
        jobs = at.client.wait(*running, b, c)
        assert {one.state for one in jobs} == {State.SUCCEEDED}
        assert [one.batch_size for one in jobs[1:]] == [2, 2]
        assert "preprocess b,c begins" in at.lines()
        assert at.client.redis.hlen(keys.held("headrace.m")) == 0


def test_what_is_staged_and_not_begun_takes_no_verb(redis_db: RedisServer, tmp_path: Path) -> None:
    with bench(redis_db, tmp_path, max_batch_size=3) as at:
        running = at.submit({"name": "x", "drops": "preprocess", "count": 1})
        at.wait_for("preprocess x begins")
        ids = at.submit(*({"name": name} for name in "abc"))
        wait_until_handed_over(at.worker.redis_url, *ids)
        by_script(at, ids[1])
        jobs = at.client.wait(*running, *ids)
        assert [job.state for job in jobs].count(State.CANCELLED) == 1
        assert jobs[2].state is State.CANCELLED
        assert "preprocess a,c begins" in at.lines()


def test_what_is_preprocessed_takes_no_inference(redis_db: RedisServer, tmp_path: Path) -> None:
    with bench(redis_db, tmp_path, max_batch_size=3) as at:
        running = at.submit({"name": "x", "drops": "inference", "count": 1})
        at.wait_for("inference x begins")
        ids = at.submit(*({"name": name} for name in "abc"))
        at.wait_for("preprocess a,b,c ends")
        by_script(at, ids[1])
        jobs = at.client.wait(*running, *ids)
        assert [job.state for job in jobs] == [
            State.SUCCEEDED, State.SUCCEEDED, State.CANCELLED, State.SUCCEEDED,
        ]  # fmt: skip
        assert {"inference a,c begins", "postprocess a,c begins"} <= set(at.lines())
        assert jobs[2].attempts == 1
        assert [at.client.result(one)["seen_as"] for one in (ids[0], ids[2])] == [ids[0], ids[2]]


def test_a_batch_that_nobody_wants_takes_no_further_verb_and_its_process_lives(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path, "InTurn", max_batch_size=2) as at:
        (pid,) = at.worker.states()["m"]["pids"]
        ids = at.submit(*({"name": name, "drops": "inference", "count": 2} for name in "ab"))
        at.wait_for("inference a,b begins")
        for job_id in ids:
            by_revoke(at, job_id)
        assert {job.state for job in at.client.wait(*ids)} == {State.CANCELLED}
        lone = at.submit({"name": "after"})
        assert at.job(*lone).state is State.SUCCEEDED
        assert "postprocess after begins" in at.lines()
        assert "postprocess a,b begins" not in at.lines()
        assert at.client.result(*lone)["pid"] == pid


def test_of_a_batch_of_a_handler_that_runs_in_turn_one_item_is_not_taken_away(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    """It may have kept something for each item; the result is discarded."""
    with bench(redis_db, tmp_path, "InTurn", max_batch_size=2) as at:
        ids = at.submit(*({"name": name, "drops": "preprocess", "count": 1} for name in "ab"))
        at.wait_for("preprocess a,b begins")
        by_script(at, ids[0])
        jobs = at.client.wait(*ids)
        assert [job.state for job in jobs] == [State.CANCELLED, State.SUCCEEDED]
        assert {"inference a,b begins", "postprocess a,b begins"} <= set(at.lines())


@pytest.fixture
def stock(redis_db: RedisServer) -> Iterator[Celery]:
    with stock_client(redis_db.url) as app:
        yield app


def test_a_revoke_outlives_the_worker_that_heard_it(
    redis_db: RedisServer, tmp_path: Path, stock: Celery
) -> None:
    environ = {"HEADRACE_LEASE_TTL_S": "1"}
    with bench(redis_db, tmp_path, "InTurn", environ) as at:
        blockers = at.submit({"name": "x", "inference": at.gate("x")}, {"name": "prepared"})
        at.wait_for("inference x begins")
        claimed(at, *blockers)
        revoked = stock.send_task(
            keys.TASK_NAME, kwargs={"model": "m", "input": {"name": "r"}}, queue="headrace.m"
        )
        kept = stock.send_task(
            keys.TASK_NAME, kwargs={"model": "m", "input": {"name": "k"}}, queue="headrace.m"
        )
        assert revoked.id is not None
        revoke(stock, revoked.id)
        wait_until(lambda: at.client.redis.exists(keys.REVOKED) == 1, "it is written down")
        at.worker.kill()
        at.open("x")
        with celery_worker(
            redis_db.url, at.worker.models, tmp_path, node="cpu1@test", environ=environ
        ) as second:
            second.wait_ready("m")
            assert kept.get(timeout=60)["name"] == "k"
            wait_until(lambda: str(revoked.state) == "REVOKED", "its client is told")
            at.client.wait(*blockers)
        assert "preprocess r begins" not in at.lines()
