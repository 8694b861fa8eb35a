"""Retries on real processes: a job that waits for its next try is in Redis, and in no worker."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.job import Job, State
from headrace.redis import keys
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models

QUEUE = keys.queue_name("tricky")


def models(folder: Path, **options: Any) -> Path:
    tricky = {
        "handler": f"{HANDLERS / 'trouble/tricky.py'}:Tricky",
        "max_batch_size": 8,
        "options": {"log": str(folder / "runs.log")},
        **options,
    }
    return write_models(folder, tricky=tricky)


def runs(folder: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in (folder / "runs.log").read_text().splitlines())


def error_of(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(job.error_json)
    return found


@pytest.mark.leaves_keys
def test_what_waits_for_its_retry_outlives_its_worker_and_runs_at_its_time(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    path, gate = models(tmp_path), tmp_path / "gate"
    value = {"do": "transient", "until": str(gate)}
    waits = {"max_retries": 100, "retry_backoff": 5.0, "retry_backoff_max": 5.0}
    with Client(redis_db.url, path) as client:
        with celery_worker(redis_db.url, path, tmp_path, node="first@test") as worker:
            worker.wait_ready("tricky")
            ids = client.submit("tricky", *[value] * 8, **waits)

            def scheduled() -> bool:
                jobs = [client.job(job_id) for job_id in ids]
                return all(job.attempts for job in jobs) and all(
                    job.state is State.SCHEDULED for job in jobs
                )

            wait_until(scheduled, "all wait for their next try", timeout_s=60)
            worker.kill()
        left = [client.job(job_id) for job_id in ids]
        waiting = [job for job in left if job.state is State.SCHEDULED]
        assert waiting
        for job in waiting:
            assert job.due_us > job.created_us
            assert error_of(job).items() >= {
                "type": "transient-error", "message": "try again", "retryable": True,
            }.items()  # fmt: skip
        gate.touch()
        with celery_worker(redis_db.url, path, tmp_path, node="second@test") as worker:
            worker.wait_ready("tricky")
            jobs = {job.id: job for job in client.wait(*ids)}
        assert {job.state for job in jobs.values()} == {State.SUCCEEDED}
        for before in waiting:
            after = jobs[before.id]
            assert after.started_us >= before.due_us
            assert after.attempts == before.attempts + 1
            assert after.error_json == ""


def test_what_is_lost_alone_waits_in_redis_between_its_tries_and_then_is_a_dead_letter(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    path = models(tmp_path)
    with (
        celery_worker(redis_db.url, path, tmp_path) as worker,
        Client(redis_db.url, path) as client,
    ):
        worker.wait_ready("tricky")
        (job_id,) = client.submit("tricky", {"do": "exit"}, retry_backoff=4, retry_backoff_max=4)

        def waits() -> list[Job]:
            job = client.job(job_id)
            return [job] if job.state is State.SCHEDULED else []

        (waiting,) = wait_until(waits, "it waits for its next try", timeout_s=60)
        assert waiting.due_us > 0
        assert error_of(waiting)["type"] == "replica-lost"
        assert error_of(waiting)["retryable"] is True
        (job,) = client.wait(job_id)
        assert (job.state, job.dead_lettered) == (State.FAILED, True)
        assert error_of(job)["type"] == "replica-lost"
        assert error_of(job)["retryable"] is False
        # Once with the batch that it was, which is not charged, and three times alone.
        assert runs(tmp_path)[job_id] == 4
        letter = client.redis.hgetall(keys.dead_letter(QUEUE, job_id))
        assert (letter[b"reason"], letter[b"attempts"]) == (b"replica-lost", b"4")


def test_a_lost_batch_costs_its_jobs_no_retry(redis_db: RedisServer, tmp_path: Path) -> None:
    path = models(tmp_path, retry_backoff_s=0, max_retries=1)
    with (
        celery_worker(redis_db.url, path, tmp_path) as worker,
        Client(redis_db.url, path) as client,
    ):
        worker.wait_ready("tricky")
        mate, bad = client.submit("tricky", {"do": "transient"}, {"do": "exit"})
        (job,) = client.wait(mate)
        # In the batch that was lost, alone, and once more.
        assert (job.state, job.attempts, job.dead_lettered) == (State.FAILED, 3, True)
        assert error_of(job)["type"] == "transient-error"
        client.wait(bad)
