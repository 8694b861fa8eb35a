"""Replicas of a real worker that follow the demand."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from headrace.config.model.catalog import load_catalog
from headrace.jobs.job import State
from headrace.registry.catalog import read_declared
from tests.harness.clients.commands import Commands
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

MODEL = "gated"
SCALED = {
    "handler": f"{HANDLERS / 'gated.py'}:Gated",
    "max_batch_size": 1,
    "max_replicas": 2,
    "scale_down_s": 0.5,
}


def running(worker: Worker, number: int) -> bool:
    state = worker.states()[MODEL]
    return bool(len(state["pids"]) == state["replicas"] == state["ready"] == number)


def follows_demand(worker: Worker, client: Client, gate: Path) -> None:
    """Wait for a second process while jobs wait, and for one again when they have ended."""
    wait_until(partial(running, worker, 1), "one process runs")
    jobs = client.submit(MODEL, *[{"until": str(gate)} for _ in range(6)], timeout=3600.0)
    wait_until(partial(running, worker, 2), "two processes run", 300)
    gate.touch()
    assert {job.state for job in client.wait(*jobs, timeout_s=300)} == {State.SUCCEEDED}
    wait_until(partial(running, worker, 1), "one process runs again", 300)
    assert worker.says("2 replicas instead of 1", MODEL) >= 1


def test_a_worker_with_its_own_file_scales_by_demand(redis_db: RedisServer, tmp_path: Path) -> None:
    models = write_models(tmp_path, **{MODEL: SCALED})
    with (
        celery_worker(redis_db.url, models, tmp_path) as worker,
        Client(redis_db.url, models) as client,
    ):
        worker.wait_ready(MODEL)
        follows_demand(worker, client, tmp_path / "gate")


def test_a_second_process_that_cannot_be_loaded_is_given_up(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "alone.py").write_text(
        "from tests.harness.handlers.gated import Gated\n\n\nclass Alone(Gated):\n"
        "    def initialize(self, context):\n"
        "        super().initialize(context)\n"
        f"        open({str(tmp_path / 'taken')!r}, 'x').close()\n"
    )
    models = write_models(tmp_path, **{MODEL: {**SCALED, "handler": "alone.py:Alone"}})
    with (
        celery_worker(redis_db.url, models, tmp_path) as worker,
        Client(redis_db.url, models) as client,
    ):
        worker.wait_ready(MODEL)
        gate = tmp_path / "gate"
        jobs = client.submit(MODEL, *[{"until": str(gate)} for _ in range(6)], timeout=3600.0)
        given_up = "1 replicas instead of 2: a process could not be loaded"
        wait_until(lambda: worker.says(given_up, MODEL), "it is given up", 300)
        wait_until(partial(running, worker, 1), "one process runs", 300)
        gate.touch()
        assert {job.state for job in client.wait(*jobs, timeout_s=300)} == {State.SUCCEEDED}


def test_a_registered_model_scales_when_it_is_changed_to_that(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    fixed = {key: SCALED[key] for key in ("handler", "max_batch_size")}
    models = write_models(tmp_path, **{MODEL: fixed})
    with (
        api_server(redis_db.url, load_catalog(models), read_declared(models)) as api,
        celery_worker(redis_db.url, models, tmp_path) as worker,
        Client(redis_db.url, models) as client,
    ):
        worker.wait_ready(MODEL)
        (pid,) = worker.model_pids()
        command = Commands(api.url, tmp_path)
        command.lines("models", "scale", MODEL, "--max", "2")
        command.lines("models", "set", MODEL, "scale_down_s=0.5")
        assert b"--max N" in command.run("models", "scale", MODEL).stderr
        follows_demand(worker, client, tmp_path / "gate")
        assert worker.model_pids() == [pid]
        shown = api.http.get(f"/api/v1/models/{MODEL}").json()
        assert (shown["min_replicas"], shown["max_replicas"]) == (1, 2)

        command.lines("models", "scale", MODEL, "--min", "2", "--max", "3")
        wait_until(partial(running, worker, 2), "the fewest processes run", 300)
        command.lines("models", "scale", MODEL, "0")
        wait_until(partial(running, worker, 0), "none runs", 300)
        refused = api.http.patch(f"/api/v1/models/{MODEL}", json={"options": {"total_replicas": 2}})
        assert refused.status_code == 400
        assert "max_replicas: it does not go with total_replicas" in refused.text
