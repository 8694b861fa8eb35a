"""The life of real model processes: load, warm-up, recycling, and their end with their worker."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.jobs.job import State
from headrace.server.supervisor.proc import kill
from tests.harness.processes.processes import children_with, gone
from tests.harness.servers.redis_servers import RedisServer, nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

WORN = f"{HANDLERS / 'trouble/worn.py'}:Worn"


@contextmanager
def worn(redis: RedisServer, folder: Path, **model: Any) -> Iterator[tuple[Worker, Client]]:
    path = write_models(
        folder, worn={"handler": WORN, "timeout_s": 30, **model}, echo={"handler": "echo"}
    )
    with celery_worker(redis.url, path, folder) as worker, Client(redis.url, path) as client:
        worker.wait_ready("echo")
        yield worker, client


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Client]]:
    """One worker for the tests that need no more than a model of their own."""
    folder = tmp_path_factory.mktemp("shared")
    models: dict[str, dict[str, Any]] = {
        "cold": {"options": {"warm": "fail"}},
        "tight": {"max_batch_size": 16, "options": {"warm": 1, "room": 4}},
        "full": {"options": {"room": 0}, "max_retries": 0},
        "large": {"max_memory_mb": 1},
    }
    served = {name: {"handler": WORN, "timeout_s": 30, **keys} for name, keys in models.items()}
    path = write_models(folder, echo={"handler": "echo"}, **served)
    with (
        redis_server() as server,
        celery_worker(server.url, path, folder) as worker,
        Client(server.url, path) as client,
    ):
        worker.wait_ready("echo", "tight", "full", "large")
        yield worker, client
        nothing_leaks(client.redis)


def failed(worker: Worker, name: str) -> str:
    """Wait until the model's load has failed; what is told of it."""

    def error() -> str:
        state = worker.states()[name]
        return str(state["error"]) if state["state"] == "failed" else ""

    return wait_until(error, "the load has failed", timeout_s=60)


@pytest.mark.slow
def test_a_load_that_hangs_is_killed_and_its_place_is_told(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    places = {"hang": "sleep_with_the_gil_held", "block": "in initialize"}
    hanging = {
        load: {"handler": WORN, "load_timeout_s": 4, "options": {"load": load}} for load in places
    }
    path = write_models(tmp_path, echo={"handler": "echo"}, **hanging)
    with celery_worker(redis_db.url, path, tmp_path) as worker:
        worker.wait_ready("echo")
        for load, where in places.items():

            def there(load: str = load, where: str = where) -> str:
                """One that was told there: a slow machine may not be so far at first."""
                error = failed(worker, load)
                limit = "the load took longer than load_timeout_s, 4 s; the process was killed"
                assert error.splitlines()[-1] == limit
                return error if where in error else ""

            wait_until(there, f"it is killed in {where}", 120)
        reported = "cannot be loaded"
        first = {load: worker.says(reported, f"model={load}") for load in places}
        for load, n in first.items():
            about = f"model={load}"
            wait_until(lambda a=about, n=n: worker.says(reported, a) > n, "killed again", 60)  # type: ignore[misc]
        pids = wait_until(worker.model_pids, "one of them is tried again", 60)
        assert worker.states()["echo"]["state"] == "ready"
    wait_until(lambda: gone(*pids), "none is left")


def test_a_warm_up_that_fails_is_a_failed_load_with_its_traceback(
    shared: tuple[Worker, Client],
) -> None:
    error = failed(shared[0], "cold")
    assert "in one" in error
    assert error.endswith("ValueError: these weights give nothing\n")


def test_a_warm_up_that_does_not_fit_makes_the_batches_smaller(
    shared: tuple[Worker, Client],
) -> None:
    worker, client = shared
    assert worker.states()["tight"]["fits"] == 4
    jobs = client.wait(*client.submit("tight", *range(40)))
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert max(job.batch_size for job in jobs) <= 4


def test_out_of_memory_costs_no_job_and_is_remembered_and_outgrown(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    gate, room = tmp_path / "gate", tmp_path / "room"
    room.write_text("5")
    with worn(redis_db, tmp_path, max_batch_size=16, options={"room": str(room)}) as (
        worker,
        client,
    ):
        worker.wait_ready("worn")
        blocker = client.submit("worn", {"until": str(gate)})
        ids = client.submit("worn", *range(64))
        gate.touch()
        jobs = client.wait(*blocker, *ids)
        assert {job.state for job in jobs} == {State.SUCCEEDED}
        assert all(job.attempts == 1 for job in jobs)
        # The batch that showed it was whole for the worker; those after it are small.
        assert max(job.batch_size for job in jobs) == 16
        assert "out of memory with 16 inputs; batches are limited to 4 for now" in worker.log
        later = client.wait(*client.submit("worn", *range(32)))
        assert max(job.batch_size for job in later) == 4
        room.write_text("1000")
        client.wait(*client.submit("worn", *range(4 * 40)), timeout_s=90)
        grown = client.wait(*client.submit("worn", *range(40)))
        assert max(job.batch_size for job in grown) > 4


def test_an_input_for_which_memory_is_too_small_fails_alone_with_its_traceback(
    shared: tuple[Worker, Client],
) -> None:
    _, client = shared
    (job,) = client.wait(*client.submit("full", 1))
    assert job.state is State.FAILED
    assert json.loads(job.error_json) == {
        "type": "out-of-memory", "message": "MemoryError: room for 0, not for 1",
        "retryable": True, "exception": "MemoryError", "where": "worn.py:54",
    }  # fmt: skip
    assert "in inference" in (job.traceback or "")


def test_recycled_after_max_jobs_without_a_gap(redis_db: RedisServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    options = {"load_gate": str(gate)}
    with worn(redis_db, tmp_path, max_jobs=5, max_batch_size=1, options=options) as (
        worker,
        client,
    ):
        worker.wait_ready("worn")
        old = worker.states()["worn"]["pids"][0]
        loads = Path(f"{gate}.log")
        client.wait(*client.submit("worn", *range(5)))
        wait_until(lambda: len(loads.read_text().split()) == 2, "the next one loads", 60)
        # It cannot load before the gate opens, and meanwhile the old one serves.
        during = client.wait(*client.submit("worn", *range(20)))
        assert {json.loads(job.result_json or "") for job in during} == {old}
        assert worker.states()["worn"]["ready"] == 1
        gate.touch()
        wait_until(lambda: gone(old), "the old one has ended", 60)
        after = client.wait(*client.submit("worn", *range(3)))
        new = {json.loads(job.result_json or "") for job in after}
        assert old not in new
        wait_until(lambda: worker.states()["worn"]["recycled"] >= 1, "it is reported")
        assert "recycling a model process: it has run 5 jobs" in worker.log
        assert "died under" not in worker.log


def test_a_successor_that_cannot_load_leaves_the_old_one_serving(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    model = {"max_jobs": 3, "max_batch_size": 1, "load_timeout_s": 4}
    with worn(redis_db, tmp_path, **model, options={"load_gate": str(gate)}) as (worker, client):
        worker.wait_ready("worn")
        old = worker.states()["worn"]["pids"][0]
        client.wait(*client.submit("worn", *range(3)))

        def reported() -> bool:
            state = worker.states()["worn"]
            return state["state"] == "ready" and "load_timeout_s" in state["error"]

        wait_until(reported, "the failed load of the next one is told beside `ready`", 60)
        jobs = client.wait(*client.submit("worn", *range(10)))
        assert {json.loads(job.result_json or "") for job in jobs} == {old}


def test_without_overlap_the_old_one_ends_first(redis_db: RedisServer, tmp_path: Path) -> None:
    model = {"max_jobs": 4, "max_batch_size": 2, "recycle_overlap": False}
    with worn(redis_db, tmp_path, **model) as (worker, client):
        worker.wait_ready("worn")
        jobs = client.wait(*client.submit("worn", *range(12)))
        assert {job.state for job in jobs} == {State.SUCCEEDED}
        assert all(job.attempts == 1 for job in jobs)
        assert len({json.loads(job.result_json or "") for job in jobs}) >= 3
        assert len(worker.states()["worn"]["pids"]) <= 1


def test_recycled_for_its_memory(redis_db: RedisServer, tmp_path: Path) -> None:
    model = {"max_memory_mb": 300, "max_batch_size": 1, "options": {"grow_mib": 60}}
    with worn(redis_db, tmp_path, **model) as (worker, client):
        worker.wait_ready("worn")
        old = worker.states()["worn"]["pids"][0]
        client.wait(*client.submit("worn", *range(6)))
        wait_until(lambda: gone(old), "the one that has grown has ended", 60)
        assert "MiB (max_memory_mb: 300)" in worker.log
        worker.wait_ready("worn")
        client.wait(*client.submit("worn", 1))


def test_a_limit_below_what_the_loaded_model_takes_is_told_and_not_followed(
    shared: tuple[Worker, Client],
) -> None:
    worker, client = shared
    jobs = client.wait(*client.submit("large", *range(20)))
    pids = {json.loads(job.result_json or "") for job in jobs}
    assert pids == set(worker.states()["large"]["pids"])
    assert "raise max_memory_mb" in worker.log


@pytest.mark.leaves_keys
@pytest.mark.parametrize("session", [False, True])
def test_a_handler_that_holds_the_gil_and_its_child_are_gone_with_their_worker(
    redis_db: RedisServer, tmp_path: Path, session: bool
) -> None:
    reported = tmp_path / "pids"
    with worn(redis_db, tmp_path) as (worker, client):
        worker.wait_ready("worn")
        client.submit("worn", {"do": "child", "pid": str(reported), "session": session})
        pids = wait_until(lambda: [int(pid) for pid in reported.read_text().split()], "it runs")
        assert not any(map(gone, pids))
        worker.kill()
        wait_until(lambda: gone(*pids), "both are gone")


@pytest.mark.leaves_keys
def test_a_guard_that_was_killed_is_replaced(redis_db: RedisServer, tmp_path: Path) -> None:
    reported = tmp_path / "pids"
    with worn(redis_db, tmp_path) as (worker, client):
        worker.wait_ready("worn")
        (guard,) = children_with(worker.pid, "guard.py")
        kill(guard, signal.SIGKILL)
        wait_until(lambda: gone(guard), "the guard is dead")
        for pid in worker.states()["echo"]["pids"]:
            kill(pid, signal.SIGKILL)
        wait_until(
            lambda: [g for g in children_with(worker.pid, "guard.py") if g != guard],
            "the next guard",
        )
        client.submit("worn", {"do": "child", "pid": str(reported), "session": False}, timeout=2)
        pids = wait_until(lambda: [int(pid) for pid in reported.read_text().split()], "it runs")
        worker.kill()
        wait_until(lambda: gone(*pids), "both are gone")


def test_activations_stay_mapped_unless_that_is_switched_off(
    redis_db: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The C library reads it when a program begins.
    monkeypatch.setattr(Worker, "forked", False)
    plain = {"handler": "echo", "malloc_tuning": False}
    path = write_models(tmp_path, echo={"handler": "echo"}, plain=plain)
    with celery_worker(redis_db.url, path, tmp_path) as worker:
        worker.wait_ready("echo", "plain")
        tunables = {
            name: psutil.Process(state["pids"][0]).environ().get("GLIBC_TUNABLES")
            for name, state in worker.states().items()
            if name
        }
    assert tunables["plain"] is None
    assert "glibc.malloc.mmap_threshold=" in (tunables["echo"] or "")
