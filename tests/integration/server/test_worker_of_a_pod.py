"""`headrace worker` as a pod runs it: ready once its models are loaded, gone once it is idle."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.job import State
from headrace.redis import keys
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import RunningUp, headrace, started
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, write_models
from tests.integration.server.test_health_probe import HOST, register

pytestmark = pytest.mark.slow

#: Loads when the file `load` is there, and ends a job when the file of its input is there.
HANDLER = """
import os
import time
from pathlib import Path
import headrace

def wait_for(name):
    while not Path(__file__).with_name(name).exists():
        time.sleep(0.01)

class Gated(headrace.Handler):
    def initialize(self, context):
        wait_for("load")
    def inference(self, items):
        for item in items:
            wait_for(item)
        return items
"""


@pytest.mark.leaves_keys
def test_it_is_ready_when_its_models_are_and_ends_when_it_is_idle(
    tmp_path: Path, redis_db: RedisServer
) -> None:
    variables = {"HEADRACE_REDIS_URL": redis_db.url, "CUDA_VISIBLE_DEVICES": ""}
    (tmp_path / "gated.py").write_text(HANDLER)
    path = write_models(
        tmp_path,
        gated={"handler": "gated.py:Gated", "max_batch_size": 1},
        paused={"handler": "echo"},
        later={"handler": "echo", "load": "on_demand"},
    )

    def health(*arguments: str) -> tuple[int, str]:
        ended = headrace("health", "worker", *arguments, cwd=tmp_path, **variables)
        return ended.returncode, (ended.stdout + ended.stderr).strip()

    with Client(redis_db.url, path) as client:
        first, last = client.submit("gated", "first", "last")
        client.redis.sadd("hr:paused", "headrace.paused")
        (waits,) = client.submit("paused", 1)
        worker = RunningUp(
            tmp_path, "worker", "--models", str(path), "--exit-when-idle", "5", **variables
        )
        with started(worker):
            wait_until(lambda: health()[0] == 0, "the worker lives", 60)
            problem = "headrace: no loaded replica on this host of: gated (loading)"
            wait_until(lambda: health("--models") == (1, problem), "only gated loads", 60)
            (tmp_path / "load").touch()
            wait_until(lambda: health("--models")[0] == 0, "its models are loaded", 60)
            (tmp_path / "first").touch()
            client.wait(first, timeout_s=60)
            wait_until(lambda: client.leased(last), "the last job runs, and none waits")
            began = time.monotonic()
            wait_until(lambda: time.monotonic() - began > 8, "more than the idle time")
            assert worker.process.poll() is None, worker.text()
            (tmp_path / "last").touch()
            assert worker.process.wait(60) == 0, worker.text()
        assert "no work for 5 s: stopping" in worker.text()
        assert client.job(last).state is State.SUCCEEDED
        # What waits in a paused queue is no work.
        assert client.job(waits).state is State.QUEUED
        client.redis.srem("hr:paused", "headrace.paused")


@pytest.mark.leaves_keys
def test_a_drain_finishes_what_runs_and_claims_nothing_more(
    tmp_path: Path, redis_db: RedisServer
) -> None:
    variables = {"HEADRACE_REDIS_URL": redis_db.url, "CUDA_VISIBLE_DEVICES": ""}
    (tmp_path / "gated.py").write_text(HANDLER)
    (tmp_path / "load").touch()
    path = write_models(tmp_path, gated={"handler": "gated.py:Gated", "max_batch_size": 1})
    nobody = headrace("drain", cwd=tmp_path, **variables)
    assert (nobody.returncode, "no worker of this host" in nobody.stderr) == (1, True)
    with Client(redis_db.url, path) as client:
        first, last = client.submit("gated", "first", "last")
        worker = RunningUp(tmp_path, "worker", "--models", str(path), **variables)
        (folder := tmp_path / "drain").mkdir()
        draining = RunningUp(folder, "drain", "--wait", **variables)
        with started(worker):
            wait_until(lambda: client.job(first).state is State.RUNNING, "the first job runs")
            with started(draining):
                worker.wait_for("Warm shutdown")
                wait_until(lambda: client.job(last).state is State.QUEUED, "the last is free")
                assert draining.process.poll() is None, draining.text()
                (tmp_path / "first").touch()
                assert draining.process.wait(60) == 0, draining.text()
            assert "ended: cpu0@" in draining.text()
            assert worker.process.wait(60) == 0, worker.text()
        assert client.job(first).state is State.SUCCEEDED
        assert client.job(last).state is State.QUEUED
        assert client.job(last).attempts == 0
        entries: Any = client.redis.xrange(keys.AUDIT)
        assert [b"drain_worker" in fields[b"e"] for _, fields in entries] == [True]


def test_a_drain_stops_no_other_program(tmp_path: Path, redis_db: RedisServer) -> None:
    register(redis_db, f"cpu0@{HOST}", os.getpid())
    refused = headrace("drain", cwd=tmp_path, HEADRACE_REDIS_URL=redis_db.url)
    assert refused.returncode == 1
    assert f"the process {os.getppid()} that runs workers here is not" in refused.stderr


def test_models_are_a_question_for_workers_only(tmp_path: Path) -> None:
    ended = headrace("health", "api", "--models", cwd=tmp_path)
    assert ended.returncode == 2
    assert "--models is for the component worker" in ended.stderr
