"""A model process that dies: how it is noticed, what is said of it, and what it costs others."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.job import Job, State
from headrace.redis import keys
from tests.harness.processes.processes import gone, suspend
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

#: No test here stands still for so long; a job that is not noticed to be lost waits as long.
PATIENT = {"HEADRACE_LEASE_TTL_S": "3600"}
QUEUE = "headrace.m"


@dataclass
class Site:
    """A worker with one model of the handler in handlers/killer.py."""

    worker: Worker
    client: Client
    folder: Path

    @property
    def pid(self) -> int:
        (pid,) = self.worker.states()["m"]["pids"]
        return int(pid)

    def submit(self, *dos: str, **options: Any) -> list[str]:
        return self.client.submit("m", *({"do": do} for do in dos), **options)

    def begun(self, count: int = 1) -> None:
        log = self.folder / "killer.log"
        wait_until(lambda: len(log.read_text().splitlines()) >= count, "a batch has begun")

    def says(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self.worker.log.splitlines())


@contextmanager
def site(redis: RedisServer, folder: Path, **model: Any) -> Iterator[Site]:
    options = {"log": str(folder / "killer.log"), **model.pop("options", {})}
    (folder / "killer.log").touch()
    same = {
        "handler": f"{HANDLERS / 'trouble/killer.py'}:Killer",
        "options": options,
        "timeout_s": 600,
    }
    path = write_models(folder, m={**same, "retry_backoff_s": 0.01, **model})
    with (
        celery_worker(redis.url, path, folder, environ=PATIENT) as worker,
        Client(redis.url, path) as client,
    ):
        worker.wait_ready("m")
        yield Site(worker, client, folder)


def error_of(job: Job) -> tuple[str, str]:
    error = json.loads(job.error_json)
    return error["type"], error["message"]


@pytest.mark.parametrize("forks", ["pool", "c"])
def test_its_death_is_noticed_though_a_child_that_it_forked_lives(
    redis_db: RedisServer, tmp_path: Path, forks: str
) -> None:
    with site(redis_db, tmp_path, options={"forks": forks}) as at:
        (first,) = at.submit("answer")
        assert at.client.wait(first)[0].state is State.SUCCEEDED
        children = at.client.result(first)
        assert children
        assert not gone(*children)
        idle = at.pid
        os.kill(idle, signal.SIGKILL)
        wait_until(lambda: at.worker.states()["m"]["pids"] not in ([], [idle]), "another is there")
        wait_until(lambda: gone(*children), "its children are gone")
        gate = tmp_path / "gate"
        (running,) = at.client.submit("m", {"gate": str(gate)})
        at.begun(2)
        os.kill(at.pid, signal.SIGKILL)
        gate.touch()
        (job,) = at.client.wait(running)
        assert (job.state, job.attempts) == (State.SUCCEEDED, 2)


@pytest.mark.parametrize(
    ("number", "how"), [(signal.SIGKILL, "by SIGKILL"), (signal.SIGTERM, "by SIGTERM")]
)
def test_a_process_that_is_ended_from_outside_leaves_a_line(
    redis_db: RedisServer, tmp_path: Path, number: signal.Signals, how: str
) -> None:
    with site(redis_db, tmp_path) as at:
        pid = at.pid
        os.kill(pid, number)
        wait_until(
            lambda: at.says("model process died without a batch", f"model_pid={pid}", how),
            "it is said",
        )
        assert at.client.wait(*at.submit("answer"))[0].state is State.SUCCEEDED


@pytest.mark.parametrize(
    ("do", "how"),
    [("exit", "with exit status 9"), ("segfault", "by SIGSEGV"), ("self", "by SIGKILL")],
)
def test_a_lost_job_and_the_log_say_how_its_process_ended_and_how_often(
    redis_db: RedisServer, tmp_path: Path, do: str, how: str
) -> None:
    with site(redis_db, tmp_path) as at:
        (job_id,) = at.submit(do)
        (job,) = at.client.wait(job_id)
        assert error_of(job) == (
            "replica-lost",
            "the model process died each of the 3 times that it ran this input alone; "
            f"attempt 4 ended {how}",
        )
        assert job.attempts == 4
        for lost in range(1, 5):
            assert at.says("model process died during a batch", job_id, f"lost={lost}", how)
        letter = at.client.redis.hgetall(f"{keys.letters}{QUEUE}:{job_id}")
        assert how in letter[b"error"].decode()
        stacks = "string_at" if do == "segfault" else ""
        assert stacks in letter[b"traceback"].decode()
        assert stacks in (job.traceback or "")


def test_a_process_that_dies_while_it_loads_is_a_failed_load(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    handler = tmp_path / "loads.py"
    handler.write_text(
        "import os\nfrom headrace.handler import Handler\n"
        "class Loads(Handler):\n    def initialize(self, context):\n        os._exit(9)\n"
        "    def inference(self, items):\n        return items\n"
    )
    path = write_models(tmp_path, m={"handler": f"{handler}:Loads"})
    with celery_worker(redis_db.url, path, tmp_path) as worker:
        wait_until(
            lambda: "ended with exit status 9 while it loaded" in worker.states()["m"]["error"],
            "it is reported",
        )
        wait_until(lambda: "the model cannot be loaded" in worker.log, "it is logged")


def test_inputs_that_crash_the_process_do_not_stop_the_model(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    """Each costs four processes, and two losses without a known cause would make it wait."""
    with site(redis_db, tmp_path, max_restarts_per_minute=2) as at:
        bad = at.submit("exit", "segfault", "exit")
        assert {error_of(job)[0] for job in at.client.wait(*bad)} == {"replica-lost"}
        hung = at.client.submit("m", *[{"gate": "/nowhere/at/all"}] * 3, timeout=0.5)
        assert {error_of(job)[0] for job in at.client.wait(*hung)} == {"timeout"}
        good = at.submit("answer")
        assert at.client.wait(*good)[0].state is State.SUCCEEDED
        assert "restarting too often" not in at.worker.log
        wait_until(lambda: at.worker.states()["m"]["lost"] >= 12, "all losses are reported")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_each_of_many_bad_inputs_ends_by_its_own_cause(
    redis_db: RedisServer, tmp_path: Path, seed: int
) -> None:
    (tmp_path / "marks").mkdir()
    options = {"log": str(tmp_path / "runs.log"), "marks": str(tmp_path / "marks")}
    model = {"handler": f"{HANDLERS / 'trouble/chaotic.py'}:Overlapping", "options": options}
    path = write_models(tmp_path, m={**model, "max_batch_size": 4, "replicas": 2})
    ends = {"exit": "replica-lost", "segfault": "replica-lost", "hang": "timeout", "plain": ""}
    kinds = [kind for kind in ends for _ in range(8)] + ["plain"] * 24
    random.Random(seed).shuffle(kinds)
    with (
        celery_worker(redis_db.url, path, tmp_path, environ=PATIENT) as worker,
        Client(redis_db.url, path) as client,
    ):
        worker.wait_ready("m")
        ids = []
        for number, kind in enumerate(kinds):
            timeout = 1.0 if kind == "hang" else 60.0
            ids += client.submit("m", {"do": kind, "n": number}, timeout=timeout)
        jobs = client.wait(*ids, timeout_s=300)
        found = [
            (kind, error_of(job)[0] if job.error_json else "")
            for kind, job in zip(kinds, jobs, strict=True)
        ]
        assert found == [(kind, ends[kind]) for kind in kinds]
        assert "restarting too often" not in worker.log


def test_a_process_that_ends_by_itself_is_lost_though_its_batch_is_overdue(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with site(redis_db, tmp_path) as at:
        (job_id,) = at.submit("exit-when-asked", timeout=0.5)
        (job,) = at.client.wait(job_id)
        kind, message = error_of(job)
        assert kind == "replica-lost"
        assert "attempt 4 ended with exit status 9" in message


def test_the_stacks_are_written_though_a_library_replaced_the_stack_of_signals(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    path = write_models(tmp_path, m={"handler": f"{HANDLERS / 'trouble/two_cores.py'}:TwoCores"})
    with (
        celery_worker(redis_db.url, path, tmp_path, environ=PATIENT) as worker,
        Client(redis_db.url, path) as client,
    ):
        worker.wait_ready("m")
        (job,) = client.wait(*client.submit("m", {}, timeout=0.5))
        assert error_of(job)[0] == "timeout"
        assert "two_cores.py" in (job.traceback or "")


def test_a_result_that_came_in_time_counts_though_the_worker_was_suspended(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with site(redis_db, tmp_path) as at:
        (job_id,) = at.client.submit("m", {"gate": str(gate)}, timeout=5)
        at.begun()
        suspend(at.worker.pid)
        try:
            gate.touch()
            over_at_s = at.client.redis.time()[0] + 7
            wait_until(lambda: at.client.redis.time()[0] > over_at_s, "its timeout is over")
        finally:
            os.kill(at.worker.pid, signal.SIGCONT)
        (job,) = at.client.wait(job_id)
        assert (job.state, job.attempts) == (State.SUCCEEDED, 1)
