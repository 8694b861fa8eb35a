"""Timeouts and `expires` on real processes: what hangs is killed, and what is late is not run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.job import Job, State
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.processes.processes import gone
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

TRICKY = f"{HANDLERS / 'trouble/tricky.py'}:Tricky"
#: The same, and inputs that wait for a file.
GATED = f"{HANDLERS / 'gated.py'}:Gated"


class Site:
    """One worker and its models."""

    def __init__(self, worker: Worker, client: Client, folder: Path) -> None:
        self.worker = worker
        self.client = client
        self.folder = folder

    def runs(self) -> list[str]:
        """The ids of jobs as they ran."""
        log = self.folder / "runs.log"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    def ran_in(self, job_id: str) -> list[int]:
        """The model processes that a job ran in."""
        lines = (self.folder / "runs.log").read_text().splitlines()
        return [int(line.split()[2]) for line in lines if line.startswith(job_id)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("time")
    tricky: dict[str, Any] = {"handler": TRICKY, "options": {"log": str(folder / "runs.log")}}
    prepared = {
        "handler": f"{HANDLERS / 'prepared.py'}:Prepared",
        "preprocess_processes": 1,
        "max_batch_size": 1,
    }
    slow = {**tricky, "options": {**tricky["options"], "pause_s": 0.2}}
    path = write_models(
        folder,
        many={**tricky, "max_batch_size": 8, "max_restarts_per_minute": 1000},
        one={**tricky, "handler": GATED, "max_batch_size": 1},
        twice={**tricky, "max_batch_size": 1, "max_restarts_per_minute": 2},
        slow={**slow, "max_batch_size": 1, "min_timeout_s": 0.01},
        floored={**slow, "max_batch_size": 1, "min_timeout_s": 20},
        prepared=prepared,
        fragile={**tricky, "handler": f"{folder / 'fragile.py'}:Tricky", "max_batch_size": 1},
    )
    shutil.copy(HANDLERS / "trouble/tricky.py", folder / "fragile.py")
    with (
        redis_server() as server,
        celery_worker(server.url, path, folder) as worker,
        Client(server.url, path) as client,
    ):
        worker.wait_ready("many", "one", "twice", "slow", "floored", "prepared", "fragile")
        yield Site(worker, client, folder)


def error_of(job: Job) -> tuple[str, str]:
    error = json.loads(job.error_json)
    return error["type"], error["message"]


@pytest.mark.parametrize(
    ("do", "where"),
    [("hang", "in one"), ("sleep", "in one"), ("child", "in wait_for_a_child")],
)
def test_whatever_hangs_is_killed_and_says_where_and_its_mates_pay_nothing(
    site: Site, do: str, where: str
) -> None:
    told = site.folder / f"child-of-{do}"
    hung = {"do": do, "s": 600, "pid": str(told)}
    ids = site.client.submit_beside("many", 1, 2, 4, bad=hung, timeout=1)
    jobs = site.client.wait(*ids)
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 3 + [State.FAILED]
    code, message = error_of(jobs[3])
    assert code == "timeout"
    assert "its timeout of 1 s" in message
    trace = jobs[3].traceback or ""
    assert "tricky.py" in trace
    assert where in trace
    assert len(trace) <= 16_000
    charged = [site.client.redis.hget(keys.job(job.id), JobField.CRASHES) for job in jobs]
    assert charged == [None] * 4
    pids = site.ran_in(ids[3])
    if do == "child":
        pids.append(int(told.read_text()))
    wait_until(lambda: gone(*pids), "all of it is gone")


def test_a_hang_in_a_preprocess_process_says_where(site: Site) -> None:
    (job,) = site.client.wait(*site.client.submit("prepared", {"hang": 1}, timeout=1))
    assert error_of(job)[0] == "timeout"
    assert "in never_ends" in (job.traceback or "")


def test_no_job_gets_less_time_than_its_model_says(site: Site) -> None:
    (job,) = site.client.wait(*site.client.submit("floored", 1, timeout=0.001))
    assert job.state is State.SUCCEEDED


def test_what_expires_while_it_is_prepared_ends_at_its_time_and_does_not_run(site: Site) -> None:
    gate = site.folder / "gate"
    blocker = site.client.submit("one", {"until": str(gate)})
    try:
        wait_until(lambda: blocker[0] in site.runs(), "the blocker runs")
        late = site.client.submit("one", 1, expires=3)
        wait_until(
            lambda: site.client.leased(*late) or site.client.job(late[0]).state is State.EXPIRED,
            "it is prepared",
        )
        (job,) = site.client.wait(*late)
    finally:
        gate.touch()
    assert job.state is State.EXPIRED
    assert error_of(job) == ("expired", "the job was not started before its `expires`")
    assert (job.attempts, job.started_us) == (0, 0)
    (ran,) = site.client.wait(*blocker)
    assert job.ended_us < ran.ended_us
    assert late[0] not in site.runs()


def test_what_expires_where_nobody_serves_its_model_ends_at_its_time(
    site: Site, tmp_path: Path
) -> None:
    """Any worker sees to it, whatever it serves itself."""
    path = write_models(tmp_path, elsewhere={"handler": "echo"})
    with Client(site.worker.redis_url, path) as client:
        waiting, due, early = (
            client.submit("elsewhere", 1, **options)[0]
            for options in ({"expires": 0.5}, {"expires": 0.5, "countdown": 3600}, {})
        )
        jobs = client.wait(waiting, due)
        assert {(job.state, job.attempts) for job in jobs} == {(State.EXPIRED, 0)}
        assert all(job.ended_us >= job.created_us + 500_000 for job in jobs)
        assert client.job(early).state is State.QUEUED
        client._call("jobs/cancel", 0, early)


def test_a_retry_that_would_come_too_late_is_not_waited_for(site: Site) -> None:
    # Of a day by chance next to nothing falls within the first seconds.
    day = {"max_retries": 5, "retry_backoff": 86_400.0, "retry_backoff_max": 86_400.0}
    (job_id,) = site.client.submit("one", {"do": "transient"}, expires=10, **day)
    (job,) = site.client.wait(job_id)
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert json.loads(job.error_json)["type"] == "transient-error"
    assert not site.client.redis.zcard(keys.dead("headrace.one"))


def test_a_timeout_that_cannot_be_met_is_not_tried_once_that_is_known(site: Site) -> None:
    # A start is no time to know it: the job is run, and its process killed.
    (cold,) = site.client.wait(*site.client.submit("slow", 1, timeout=0.05))
    assert error_of(cold)[0] == "timeout"
    site.client.wait(*site.client.submit("slow", *range(20)))
    lost = site.worker.states()["slow"]["lost"]
    (job,) = site.client.wait(*site.client.submit("slow", 1, timeout=0.05))
    assert job.state is State.EXPIRED
    assert job.id not in site.runs()
    assert "its timeout of 0.05 s cannot be met" in error_of(job)[1]
    # One that can be met is run, and no process was lost.
    (met,) = site.client.wait(*site.client.submit("slow", 1, timeout=20))
    assert met.state is State.SUCCEEDED
    assert site.worker.states()["slow"]["lost"] == lost


def given_back(site: Site, *ids: str) -> bool:
    jobs = [site.client.job(job_id) for job_id in ids]
    return {(job.state, job.attempts) for job in jobs} == {(State.QUEUED, 0)}


def test_a_model_that_cannot_be_loaded_again_gives_back_what_was_prepared(site: Site) -> None:
    handler = site.folder / "fragile.py"
    source = handler.read_text()
    handler.write_text("raise RuntimeError('a broken deploy')")
    (hung,) = site.client.submit("fragile", {"do": "sleep", "s": 600}, timeout=3)
    wait_until(lambda: hung in site.runs(), "it hangs")
    waiting = site.client.submit("fragile", 1, 2)

    def failed() -> bool:
        return bool(site.worker.states()["fragile"]["state"] == "failed")

    def prepared() -> bool:
        # Or it is over already, where this test stood still for the timeout.
        return site.client.leased(waiting[0]) or failed()

    wait_until(prepared, "one is prepared")
    wait_until(failed, "it is not loaded", 60)
    wait_until(lambda: given_back(site, *waiting), "others may run what it held")
    handler.write_text(source)
    assert {job.state for job in site.client.wait(*waiting)} == {State.SUCCEEDED}


def test_a_model_that_loses_its_processes_too_often_waits_and_says_so(site: Site) -> None:
    # A job that hangs alone is known to be the cause, and does not count.
    hung = site.client.submit("twice", *[{"do": "sleep", "s": 600}] * 2, timeout=1)
    jobs = site.client.wait(*hung)
    assert {error_of(job)[0] for job in jobs} == {"timeout"}
    for _ in range(2):
        site.worker.wait_ready("twice")
        (pid,) = site.worker.states()["twice"]["pids"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: pid not in site.worker.model_pids(), "its loss is reported")  # type: ignore[misc]
    waiting = site.client.submit("twice", 1, 2, 3)

    def told() -> Any:
        state = site.worker.states()["twice"]
        return state if (state["state"], state["pids"]) == ("restarting", []) else None

    state = wait_until(told, "it is told")
    assert state["lost"] == 4
    assert state["error"].startswith(
        "restarting too often: 2 model processes were killed or died within 60 s"
    )
    assert "it ended by SIGKILL" in state["error"]
    wait_until(lambda: "restarting too often" in site.worker.log, "it is logged")

    wait_until(lambda: given_back(site, *waiting), "its jobs are back in their queue, uncharged")
    # Its jobs wait for whoever can run them.
    with celery_worker(
        site.worker.redis_url, site.worker.models, site.folder, node="cpu1@test"
    ) as second:
        second.wait_ready("twice")
        done = site.client.wait(*waiting)
    assert {(job.state, job.attempts) for job in done} == {(State.SUCCEEDED, 1)}
