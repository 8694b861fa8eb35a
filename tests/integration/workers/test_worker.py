"""One real Celery worker with real model processes against a real server."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.job import State
from headrace.redis import keys
from tests.harness.processes.processes import gone, suspend
from tests.harness.servers.redis_servers import RedisServer, nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

#: Which has inputs that wait for a file, too.
TRICKY = f"{HANDLERS / 'gated.py'}:Gated"
FAST_LEASE = {"HEADRACE_LEASE_TTL_S": "2"}
#: Of a worker that is looked at for what runs twice: one that may stand still for some seconds.
LONG_LEASE = {"HEADRACE_LEASE_TTL_S": "12"}


def models(folder: Path, **more: dict[str, Any]) -> Path:
    tricky: dict[str, Any] = {
        "handler": TRICKY,
        "max_batch_size": 8,
        "timeout_s": 30,
        # What these tests lose of it in a minute is more than a user's model may lose.
        "max_restarts_per_minute": 1000,
        "options": {"log": str(folder / "runs.log")},
    }
    echo = {"handler": "echo", "max_queue_depth": 100_000}
    return write_models(folder, tricky=tricky, echo=echo, **more)


def runs(folder: Path, ids: Iterable[str]) -> Counter[str]:
    """How often each of these jobs has begun."""
    return Counter(job_id for job_id, _ in _begun(folder) if job_id in set(ids))


def process_of(folder: Path, job_id: str) -> int:
    """The model process in which a job has begun."""
    return next(pid for begun, pid in _begun(folder) if begun == job_id)


def _begun(folder: Path) -> list[tuple[str, int]]:
    log = folder / "runs.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(line.split()[0], int(line.split()[2])) for line in lines]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker for every test that ends all its jobs and leaves the worker running."""
    folder = tmp_path_factory.mktemp("worker")
    wordless = {"handler": f"{HANDLERS / 'generation/wordless.py'}:Wordless", "max_batch_size": 8}
    ahead = {**wordless, "handler": f"{HANDLERS / 'generation/wordless.py'}:WordlessAhead"}
    broken = {"handler": TRICKY, "options": {"load": "fail"}}
    path = models(folder, broken=broken, wordless=wordless, ahead=ahead)
    with (
        redis_server() as server,
        celery_worker(server.url, path, folder) as running,
    ):
        running.wait_ready("tricky", "echo", "wordless", "ahead")
        yield running
        with server.client() as redis:
            nothing_leaks(redis)


@pytest.fixture
def client(worker: Worker) -> Iterator[Client]:
    with Client(worker.redis_url, worker.models) as connected:
        yield connected


@pytest.fixture(params=[LONG_LEASE])
def own(
    redis_db: RedisServer, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Worker, Client]]:
    """A worker that the test may end."""
    path = models(tmp_path)
    with (
        celery_worker(redis_db.url, path, tmp_path, environ=request.param) as running,
        Client(redis_db.url, path) as client,
    ):
        running.wait_ready("tricky", "echo")
        yield running, client


def test_one_bad_input_fails_alone(client: Client) -> None:
    ids = client.submit("tricky", 1, 2, {"do": "raise", "n": 7}, 4)
    jobs = client.wait(*ids)
    assert [job.state for job in jobs] == [
        State.SUCCEEDED,
        State.SUCCEEDED,
        State.FAILED,
        State.SUCCEEDED,
    ]
    error = json.loads(jobs[2].error_json)
    assert error == {
        "type": "handler-error",
        "message": "ValueError: cannot do 7",
        "retryable": False,
        "exception": "ValueError",
        "where": "tricky.py:52",
    }
    assert "raise ValueError" in (jobs[2].traceback or "")


@pytest.mark.parametrize("model", ["wordless", "ahead"])
def test_errors_and_results_that_cannot_be_sent_as_they_are_cost_no_process(
    client: Client, model: str
) -> None:
    said = {
        "silent": ("handler-error", "SilentError: (SilentError, of which str() raises)"),
        "undecodable": ("input-error", r"no such file: \udcff.png"),
        "leave": ("handler-error", "SystemExit: bye"),
        "odd": ("handler-error", "mine"),
        "unwritable": (
            "handler-error",
            "the result cannot be sent: RuntimeError: the device is away",
        ),
    }
    good = [{"do": "give"}] * 3
    jobs = client.wait(*client.submit(model, *good, *({"do": do} for do in said)))
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 3 + [State.FAILED] * len(said)
    assert [job.attempts for job in jobs] == [1] * len(jobs)
    assert len({job.result_json for job in jobs[:3]}) == 1
    for job, (code, message) in zip(jobs[3:], said.values(), strict=True):
        told = {"type": code, "message": message, "retryable": False}
        assert json.loads(job.error_json).items() >= told.items()


@pytest.mark.parametrize("how", ["exit", "segfault"])
def test_an_input_that_takes_its_process_with_it_ends_in_the_dead_letters_alone(
    client: Client, how: str
) -> None:
    ids = client.submit("tricky", 1, 2, {"do": how}, 4, 5)
    jobs = client.wait(*ids)
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 2 + [State.FAILED] + [
        State.SUCCEEDED
    ] * 2
    assert json.loads(jobs[2].error_json)["type"] == "replica-lost"
    assert jobs[2].dead_lettered
    assert client.redis.zscore(keys.dead(keys.queue_name("tricky")), ids[2]) is not None


@pytest.mark.parametrize("poison", [{"do": "sleep", "s": 600}, {"do": "hang"}])
def test_a_timeout_is_hard_and_costs_the_batch_mates_nothing(
    client: Client, poison: dict[str, Any]
) -> None:
    ids = client.submit_beside("tricky", 1, 2, 4, bad=poison, timeout=1)
    jobs = client.wait(*ids)
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 3 + [State.FAILED]
    assert json.loads(jobs[3].error_json)["type"] == "timeout"


def test_a_retryable_error_is_tried_again_as_often_as_was_asked(
    client: Client, worker: Worker
) -> None:
    (job_id,) = client.submit("tricky", {"do": "transient"}, max_retries=1)
    (job,) = client.wait(job_id)
    assert job.state is State.FAILED
    assert job.attempts == 2
    assert runs(worker.folder, [job_id])[job_id] == 2
    assert json.loads(job.error_json)["retryable"] is True


def test_expired_and_delayed_jobs(client: Client, worker: Worker) -> None:
    (late,) = client.submit("tricky", 1, countdown=1.5)
    assert client.job(late).state is State.SCHEDULED
    (job,) = client.wait(late)
    assert job.started_us - job.created_us >= 1_500_000
    (expired,) = client.submit("tricky", 2, countdown=1.2, expires=0.5)
    (job,) = client.wait(expired)
    assert job.state is State.EXPIRED
    assert (job.attempts, job.started_us) == (0, 0)
    assert not runs(worker.folder, [expired])


def test_a_cancelled_job_does_not_run_and_a_running_one_is_discarded(
    client: Client, worker: Worker
) -> None:
    gate = worker.folder / "gate"
    blocker = client.submit("tricky", {"until": str(gate)})
    try:
        wait_until(lambda: client.job(blocker[0]).state is State.RUNNING, "the blocker runs")
        waiting = client.submit("tricky", *range(20))
        ids = (waiting[19], blocker[0], "nobody")
        outcomes = client._call("jobs/cancel", 0, *ids)
        assert outcomes == [b"removed", b"asked", b"unknown"]
    finally:
        gate.touch()
    client.wait(*blocker, *waiting)
    assert client.job(blocker[0]).state is State.CANCELLED
    assert client.job(waiting[19]).state is State.CANCELLED
    assert not runs(worker.folder, [waiting[19]])
    assert client._call("jobs/cancel", 0, waiting[0]) == [b"ended"]


def test_a_model_process_killed_under_its_batch_loses_nothing(
    client: Client, worker: Worker
) -> None:
    ids = client.submit("tricky", *({"do": "sleep", "s": 0.1} for _ in range(16)))
    first = wait_until(lambda: next(iter(runs(worker.folder, ids)), ""), "a batch runs")
    os.kill(process_of(worker.folder, first), signal.SIGKILL)
    jobs = client.wait(*ids)
    assert {job.state for job in jobs} == {State.SUCCEEDED}


def test_a_stopped_model_process_stops_neither_its_worker_nor_another_model(
    client: Client, worker: Worker
) -> None:
    (before,) = client.submit("tricky", 1)
    client.wait(before)
    suspend(process_of(worker.folder, before))
    large = ["x" * 400_000 for _ in range(2)]
    ids = client.submit("tricky", *large, timeout=4)
    (lone,) = client.submit("echo", "meanwhile")
    assert client.wait(lone)[0].state is State.SUCCEEDED
    assert {job.state for job in client.wait(*ids)} == {State.SUCCEEDED}


def test_sigterm_finishes_what_runs_and_gives_back_the_rest_uncharged(
    redis_db: RedisServer, own: tuple[Worker, Client], tmp_path: Path
) -> None:
    worker, client = own
    running = client.submit("tricky", *({"do": "sleep", "s": 0.3} for _ in range(4)))
    wait_until(lambda: bool(runs(tmp_path, running)), "a batch runs")
    waiting = client.submit("tricky", *range(30))
    pids = [worker.pid, *worker.model_pids()]
    assert worker.stop() == 0
    assert gone(*pids)
    assert {job.state for job in client.wait(*running)} == {State.SUCCEEDED}
    left = client.view(*waiting)
    assert {job.state for job in left if job} <= {State.QUEUED, State.SUCCEEDED}
    assert {job.attempts for job in left if job and job.state is State.QUEUED} <= {0}
    assert client.redis.zcard(keys.lease(keys.queue_name("tricky"))) == 0
    with celery_worker(redis_db.url, worker.models, tmp_path, node="cpu1@test") as second:
        second.wait_ready("tricky")
        assert {job.state for job in client.wait(*waiting)} == {State.SUCCEEDED}
    assert set(runs(tmp_path, [*running, *waiting]).values()) == {1}


@pytest.mark.parametrize("own", [FAST_LEASE], indirect=True)
def test_kill_9_of_a_worker_loses_nothing_and_leaves_no_process(
    redis_db: RedisServer, own: tuple[Worker, Client], tmp_path: Path
) -> None:
    worker, client = own
    ids = client.submit("tricky", *({"do": "sleep", "s": 0.05} for _ in range(60)))
    wait_until(lambda: len(runs(tmp_path, ids)) > 10, "work is under way")
    pids = worker.model_pids()
    worker.kill()
    wait_until(lambda: gone(*pids), "the model processes are gone")
    with celery_worker(
        redis_db.url, worker.models, tmp_path, node="cpu1@test", environ=FAST_LEASE
    ) as second:
        second.wait_ready("tricky")
        assert {job.state for job in client.wait(*ids)} == {State.SUCCEEDED}


def test_on_each_server_jobs_end_once_though_it_is_killed_under_load(
    tmp_path: Path, any_flavour: RedisServer
) -> None:
    server, path = any_flavour, models(tmp_path)
    with (
        celery_worker(server.url, path, tmp_path, environ=LONG_LEASE) as running,
        Client(server.url, path) as client,
    ):
        running.wait_ready("tricky")
        ids = client.submit("tricky", *range(100))
        jobs = client.wait(*ids)
        assert [client.result(job_id) for job_id in ids] == list(range(100))
        assert {job.state for job in jobs} == {State.SUCCEEDED}
        assert max(job.batch_size for job in jobs) == 8
        assert runs(tmp_path, ids) == Counter(ids)
        assert all(job.attempts == 1 for job in jobs)
        assert jobs[0].timings
        assert jobs[0].ended_us > jobs[0].created_us

        # The last of them run until Redis is away, however long this test is held up.
        gate = tmp_path / "gate"
        sleep, held = {"do": "sleep", "s": 0.02}, {"until": str(gate)}
        ids = client.submit("tricky", *[sleep] * 142, *[held] * 8)
        wait_until(lambda: len(runs(tmp_path, ids)) > 20, "work is under way")
        server.stop(kill=True)
        wait_until(lambda: "Redis is away" in running.log, "the worker has noticed")
        gate.touch()
        server.start()
        jobs = client.wait(*ids)
        assert {job.state for job in jobs} == {State.SUCCEEDED}
        assert max(runs(tmp_path, ids).values()) == 1, (
            "a batch that ran through the outage was run again"
        )


def test_a_server_that_forgot_the_scripts_is_taught_them_again(
    client: Client, worker: Worker
) -> None:
    ids = client.submit("tricky", *({"do": "sleep", "s": 0.02} for _ in range(60)))
    wait_until(lambda: len(runs(worker.folder, ids)) > 10, "work is under way")
    client.redis.script_flush()
    assert {job.state for job in client.wait(*ids)} == {State.SUCCEEDED}
    assert max(runs(worker.folder, ids).values()) == 1


def test_a_model_that_cannot_be_loaded_leaves_the_rest_serving_and_says_why(
    client: Client, worker: Worker
) -> None:
    def failed() -> str:
        state = worker.states()["broken"]
        return str(state["error"]) if state["state"] == "failed" else ""

    # It is tried again at times, and is loading then.
    error = wait_until(failed, "the failed load is told")
    assert "these weights are for another model" in error
    (job_id,) = client.submit("echo", "still here")
    client.wait(job_id)
    (stuck,) = client.submit("broken", 1)
    assert client.job(stuck).state is State.QUEUED
    assert client._call("jobs/cancel", 0, stuck) == [b"removed"]
    # Nobody will ever claim its message.
    client.redis.delete(keys.queue_name("broken"), keys.tomb(keys.queue_name("broken")))


def test_a_server_that_refuses_tracking_is_served_by_looking(tmp_path: Path) -> None:
    path = models(tmp_path)
    with (
        redis_server("redis7", "--rename-command", "CLIENT", "") as server,
        celery_worker(server.url, path, tmp_path) as running,
        Client(server.url, path) as client,
    ):
        running.wait_ready("echo")
        for n in range(5):
            (job_id,) = client.submit("echo", n)
            (job,) = client.wait(job_id)
            assert job.state is State.SUCCEEDED
        assert "refuses CLIENT TRACKING" in running.log


def test_an_idle_worker_is_woken_by_a_push(client: Client) -> None:
    def waited_ms() -> float:
        took = []
        for n in range(20):
            (job_id,) = client.submit("echo", n)
            (job,) = client.wait(job_id)
            took.append(float(job.timings.split(",")[0]))
            time.sleep(0.01)  # lets the worker go idle again
        return sorted(took)[10]

    # This is no claim about speed. By its sweep alone, a worker would find its work after 500 ms on
    # average, and no round would be below the limit. On a busy machine one of a few rounds is.
    assert any(waited_ms() < 250 for _ in range(6))
