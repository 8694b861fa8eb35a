"""A job that takes its whole worker with it is found, and no other job is charged for it."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.config.settings import Settings
from headrace.jobs.job import Job, State
from headrace.payloads.stores import build_stores
from headrace.redis import keys
from headrace.redis.script_client import call_script
from headrace.redis.scripts import queues as queue_scripts
from headrace.server.recovery import release_incarnation
from tests.harness.clients.payloads import submit_stored
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, write_models

GOOD = {"do": "answer"}


@dataclass
class Site:
    """Workers that are started again when they die.

    Attributes:
        deaths: how many workers have died.
        app: the workers' Celery app.
        reaped: no supervisor releases what a dead worker held: its leases run out.
    """

    redis_url: str
    models: Path
    folder: Path
    client: Client
    reaped: bool = False
    app: str = "workers.celery_app"
    deaths: int = 0
    workers: list[Worker] = field(default_factory=list)

    def start(self, node: str) -> None:
        environ = {
            # Far longer than a test, so that a machine which stands still loses no lease.
            "HEADRACE_LEASE_TTL_S": "3600",
            "HEADRACE_INCARNATION": f"{node}-{secrets.token_hex(4)}",
        }
        worker = Worker(self.redis_url, self.models, self.folder, node, environ, app=self.app)
        self.workers.append(worker)
        worker.start()
        pids = " ".join(str(one.pid) for one in self.workers)
        (self.folder / "pids").write_text(pids)

    def tend(self) -> None:
        """Release what dead workers held, and start others in their place."""
        ended = [one for one in self.workers if one.process and one.process.poll() is not None]
        for worker in ended:
            self.workers.remove(worker)
            self.deaths += 1
            self.release(worker)
        for worker in ended:
            self.start(worker.node)

    def release(self, worker: Worker) -> None:
        owner = worker.environ["HEADRACE_INCARNATION"]
        if not self.reaped:
            release_incarnation(self.redis_url, owner)
            return
        for model in self.client.catalog.models:
            queue = keys.queue_name(model)
            held = [
                job_id.decode()
                for job_id in self.client.redis.zrange(keys.lease(queue), 0, -1)
                if self.client.redis.hget(keys.job(job_id.decode()), "o") == owner.encode()
            ]
            if held:
                self.client.redis.zadd(keys.lease(queue), dict.fromkeys(held, 1))
            sweep = queue_scripts.sweep(
                queue, reap_until_us=2**52, losses="3 1000 1000", orphaned_max=0
            )
            call_script(self.client.redis, sweep)

    def wait(self, *ids: str) -> list[Job]:
        """Keep workers alive until these jobs have ended."""
        left = set(ids)

        def ended() -> bool:
            self.tend()
            left.difference_update(
                job.id for job in self.client.view(*left) if job is not None and job.state.final
            )
            return not left

        wait_until(ended, "all jobs end", 300)
        return [self.client.job(job_id) for job_id in ids]

    def batches(self) -> list[str]:
        """The ids of the jobs of each batch that has begun."""
        log = self.folder / "killer.log"
        return log.read_text().splitlines() if log.exists() else []


@contextmanager
def site(
    redis: RedisServer,
    folder: Path,
    *,
    workers: int = 1,
    beside: tuple[str, ...] = (),
    app: str = "workers.celery_app",
    **model: Any,
) -> Iterator[Site]:
    options = {"log": str(folder / "killer.log"), "host": str(folder / "pids")}
    handler = f"{HANDLERS / 'trouble/killer.py'}:Killer"
    same = {"handler": handler, "options": options, "max_batch_size": 16, **model}
    path = write_models(folder, **dict.fromkeys(("m", *beside), same))
    with Client(redis.url, path) as client:
        found = Site(redis.url, path, folder, client, app=app)
        try:
            for number in range(workers):
                found.start(f"cpu{number}@test")
            yield found
        except BaseException:
            for worker in found.workers:
                print(worker.log[-6000:])  # noqa: T201 - pytest shows it with the failure
            raise
        finally:
            for worker in found.workers:
                worker.kill()


def assert_only_the_last_is_lost(jobs: list[Job]) -> None:
    *good, bad = jobs
    assert [job.state for job in good] == [State.SUCCEEDED] * len(good), [
        job.error_json for job in good if job.state is not State.SUCCEEDED
    ]
    assert bad.state is State.FAILED
    error = json.loads(bad.error_json)
    assert error["type"] == "replica-lost"
    assert f"attempt {bad.attempts}" in error["message"]


@pytest.mark.parametrize("reaped", [False, True], ids=["released", "reaped"])
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_of_sixteen_in_a_batch_only_the_one_that_kills_its_worker_fails(
    redis_db: RedisServer, tmp_path: Path, seed: int, reaped: bool
) -> None:
    with site(redis_db, tmp_path) as at:
        at.reaped = reaped
        bad = random.Random(seed).randrange(16)
        inputs = [GOOD] * 16
        inputs[bad] = {"do": "worker"}
        ids = at.client.submit("m", *inputs)
        ids.append(ids.pop(bad))
        jobs = at.wait(*ids)
        assert_only_the_last_is_lost(jobs)
        # Once with others, and `max_deliveries` times alone.
        assert at.deaths == 4


@pytest.mark.slow
@pytest.mark.parametrize("what", ["worker", "segfault"])
def test_beside_other_replicas_and_models_only_the_one_to_blame_fails(
    redis_db: RedisServer, tmp_path: Path, what: str
) -> None:
    slow = {"do": "answer", "takes_s": 0.3}
    with site(redis_db, tmp_path, beside=("n",), replicas=2, max_batch_size=4) as at:
        ids = [*at.client.submit("m", *[slow] * 8), *at.client.submit("n", *[slow] * 8)]
        ids += at.client.submit("m", {"do": what})
        jobs = at.wait(*ids)
        assert_only_the_last_is_lost(jobs)


@pytest.mark.slow
def test_of_two_workers_that_die_together_only_the_one_to_blame_fails(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    slow = {"do": "answer", "takes_s": 0.5}
    with site(redis_db, tmp_path, workers=2, max_batch_size=2) as at:
        ids = at.client.submit("m", slow, slow, slow, {"do": "host"})
        assert_only_the_last_is_lost(at.wait(*ids))


def test_five_deaths_of_the_worker_fail_no_good_job(redis_db: RedisServer, tmp_path: Path) -> None:
    gate, begun = tmp_path / "gate", 0
    with site(redis_db, tmp_path, max_batch_size=8) as at:
        ids = at.client.submit("m", *[{"do": "answer", "gate": str(gate)}] * 24)
        for _ in range(5):
            wait_until(lambda: len(at.batches()) > begun, "a batch begins")  # noqa: B023
            at.workers[0].kill()
            begun = len(at.batches())
            at.tend()
        gate.touch()
        jobs = at.wait(*ids)
        assert {job.state for job in jobs} == {State.SUCCEEDED}


@pytest.mark.slow
@pytest.mark.leaves_keys
@pytest.mark.parametrize("dies", ["read", "fetch", "store"])
def test_an_input_that_ends_its_worker_outside_its_batch_fails_and_no_other(
    redis_db: RedisServer, tmp_path: Path, dies: str
) -> None:
    with site(redis_db, tmp_path, app="tests.harness.workers.dying_app", max_batch_size=4) as at:
        bad = {"do": "answer", "same": f"die-{dies} " + "x" * 20_000}
        ids = at.client.submit("m", GOOD, GOOD)
        if dies == "fetch":
            with closing(build_stores(Settings(), redis_db.url)) as stores:
                body = json.dumps(bad).encode()
                ids.append(submit_stored(at.client, stores, "m", body, "application/json"))
        else:
            ids += at.client.submit("m", bad)
        ids += at.client.submit("m", GOOD)
        ids.append(ids.pop(2))
        assert_only_the_last_is_lost(at.wait(*ids))
        # Ten times without a charge, until it is withheld; or once, if it began to run.
        assert at.deaths == (4 if dies == "store" else 13)
