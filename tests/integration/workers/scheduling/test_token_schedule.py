"""`schedule: tokens` with real workers: shares, deadlines, kills, and a restart of Redis."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.access.api_key import Caller
from headrace.jobs.ids import new_id
from headrace.jobs.options import JobOptions
from headrace.queue.submission import Extras, JobSubmission, SubmitKind, submission
from headrace.redis import keys
from tests.harness.deployments.outage import DURABLE
from tests.harness.servers.redis_servers import RedisServer, nothing_leaks, redis_server
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models

MANY, FEW = Caller("a" * 12, sees_all=False), Caller("b" * 12, sees_all=False)
FAST_LEASE = {"HEADRACE_LEASE_TTL_S": "2"}


def models(folder: Path) -> Path:
    """One job at a time; a log has the order in which they ran."""
    handler = f"{HANDLERS / 'gated.py'}:Gated"
    options = {"log": str(folder / "runs.log")}
    common = {"handler": handler, "options": options, "max_batch_size": 1}
    generator = {
        "handler": f"{HANDLERS / 'generation/generating.py'}:Words",
        "options": {"slots": 4},
    }
    return write_models(
        folder,
        m={**common, "schedule": "tokens", "max_queued_tokens": 10**9},
        g={**generator, "schedule": "tokens"},
    )


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server("valkey9", *DURABLE) as running:
        yield running


def submit(client: Client, caller: Caller, value: Any, count: int = 1, **more: Any) -> list[str]:
    config = client.catalog.get(more.pop("model", "m"))
    kind = SubmitKind(config, 600, JobOptions(**more.pop("options", {})), caller=caller)
    extras = Extras(**more)

    def one() -> JobSubmission:
        return submission(kind, new_id(), value, now_s=time.time(), extras=extras)

    jobs = [one() for _ in range(count)]
    client.send(*jobs)
    return [job.id for job in jobs]


def order(folder: Path) -> list[str]:
    return [text.split()[0] for text in (folder / "runs.log").read_text().splitlines()]


def test_a_small_key_behind_a_backlog_gets_half_and_deadlines_are_kept(
    server: RedisServer, tmp_path: Path
) -> None:
    path = models(tmp_path)
    with Client(server.url, path) as client:
        many = submit(client, MANY, b"1", 200)
        few = submit(client, FEW, b"2", 20)
        offline: dict[str, Any] = {"options": {"priority": 9}}
        late = submit(client, FEW, b"3", 5, deadline_s=2_000_000_000, **offline)
        usual = submit(client, FEW, b"5", 5, **offline)
        soon = submit(client, FEW, b"4", 5, deadline_s=time.time() + 3600, **offline)
        with celery_worker(server.url, path, tmp_path) as worker:
            worker.wait_ready("m")
            client.wait(*many, *few, *late, *usual, *soon)
            ran = order(tmp_path)
            nothing_leaks(client.redis)
    # The claims of a worker run ahead of its jobs by a few.
    first = Counter(job_id in few for job_id in ran[:48])
    assert first[True] >= 18, ran.index(few[-1])
    online, rest = ran[:-15], ran[-15:]
    assert sorted(online) == sorted(many + few)
    assert [job_id for job_id in online if job_id in many] == many
    assert rest == soon + usual + late


def test_a_generator_takes_the_jobs_of_a_small_key_in_turn(
    server: RedisServer, tmp_path: Path
) -> None:
    path = models(tmp_path)
    with Client(server.url, path) as client:
        many = submit(client, MANY, b'{"words":2}', 120, model="g")
        few = submit(client, FEW, b'{"words":3}', 20, model="g")
        with celery_worker(server.url, path, tmp_path) as worker:
            worker.wait_ready("g")
            client.wait(*many, *few)
            claimed = sorted(many + few, key=lambda one: int(client.redis.hget(keys.job(one), "t")))
            nothing_leaks(client.redis)
    # The first claim may come before all is known.
    assert sum(job_id in few for job_id in claimed[:48]) >= 18, claimed.index(few[-1])
    assert [job_id for job_id in claimed if job_id in many] == many


@pytest.mark.slow
def test_kills_of_the_worker_and_a_restart_of_redis_lose_and_double_nothing(
    server: RedisServer, tmp_path: Path
) -> None:
    path = models(tmp_path)
    with Client(server.url, path) as client:
        ids = submit(client, MANY, b"1", 150) + submit(client, FEW, b"2", 50)
        for turn in range(3):
            with celery_worker(server.url, path, tmp_path, environ=FAST_LEASE) as worker:
                worker.wait_ready("m")
                submit_more = submit(client, FEW, b"3", 5)
                ids += submit_more
                client.wait(submit_more[0])
                if turn == 1:
                    server.stop()
                    server.start()
                os.kill(worker.pid, signal.SIGKILL)
        with celery_worker(server.url, path, tmp_path, environ=FAST_LEASE) as worker:
            worker.wait_ready("m")
            jobs = client.wait(*ids)
            assert all(job.state.final for job in jobs)
            assert {job.state.name for job in jobs} == {"SUCCEEDED"}
            assert client.redis.hget(keys.count(keys.queue_name("m")), "tokens") is None
            nothing_leaks(client.redis)
