"""Flower on our app, over HTTP, against a real worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import keys
from headrace.jobs import State, new_id
from tests.harness.celery_client import GET_TIMEOUT_S, send, stock_client
from tests.harness.children import end_child
from tests.harness.redis_servers import free_port, leaked_keys, redis_server
from tests.harness.wait import wait_until
from tests.harness.worker import HANDLERS, ROOT, Client, celery_worker, write_models

SECRET = "the-input-itself"
NODE = "cpu0@test"
FLOWER_TIMEOUT_S = 20


@dataclass
class Flower:
    """A running Flower, and clients of the deployment that it shows."""

    port: int
    redis_url: str
    folder: Path
    ours: Client

    @contextmanager
    def running(self) -> Iterator[str]:
        """A job that runs as long as the context."""
        gate = self.folder / new_id()
        (job_id,) = self.ours.submit("gated", {"until": str(gate)})
        try:
            yield job_id
        finally:
            gate.touch()

    def read(self, path: str, body: dict[str, Any] | None = None) -> str:
        """The answer to a GET, or to a POST of this JSON."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            text: str = response.read().decode()
        return text

    def json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return json.loads(self.read(path, body))

    def task(self, job_id: str) -> dict[str, Any]:
        """What Flower knows of a job; empty while it knows nothing."""
        try:
            found: dict[str, Any] = self.json(f"/api/task/info/{job_id}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return {}
            raise
        return found

    def wait_for(self, state: str, *job_ids: str) -> list[dict[str, Any]]:
        """Wait until Flower shows these jobs in this state."""
        wait_until(
            lambda: all(self.task(job_id).get("state") == state for job_id in job_ids),
            f"Flower shows {state}",
        )
        return [self.task(job_id) for job_id in job_ids]


@contextmanager
def running_flower(redis_url: str, models: Path, folder: Path) -> Iterator[int]:
    port = free_port()
    environ = {
        **os.environ,
        "FLOWER_UNAUTHENTICATED_API": "true",
        "HEADRACE_REDIS_URL": redis_url,
        "HEADRACE_MODELS_FILE": str(models),
        "PYTHONPATH": str(ROOT),
    }
    command = [
        sys.executable, "-m", "celery", "-A", "workers.celery_app", "flower",
        "--address=127.0.0.1", f"--port={port}",
    ]  # fmt: skip
    with (folder / "flower.log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, cwd=folder, stdout=log, stderr=log)
    try:
        yield port
    except BaseException:
        print((folder / "flower.log").read_text(errors="replace")[-4000:])  # noqa: T201
        raise
    finally:
        end_child(process, 10)


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    folder = tmp_path_factory.mktemp("flower")
    gated = {"handler": f"{HANDLERS / 'gated.py'}:Gated", "max_batch_size": 4}
    # Never loaded, so that its queue stands still.
    still = {**gated, "options": {"load": "fail"}}
    path = write_models(folder, gated=gated, still=still)
    with (
        redis_server() as server,
        celery_worker(server.url, path, folder, node=NODE, arguments=()) as worker,
        running_flower(server.url, path, folder) as port,
        Client(server.url, path) as ours,
    ):
        worker.wait_ready("gated")
        flower = Flower(port, server.url, folder, ours)
        wait_until(
            lambda: flower.json("/workers?json=1")["data"], "Flower sees a worker", FLOWER_TIMEOUT_S
        )
        wait_until(lambda: "enabled by remote" in worker.log, "Flower has asked for events")
        yield flower
        leaked = leaked_keys(ours.redis)
    assert not leaked, f"keys without a TTL were left behind: {leaked}"


def test_workers(flower: Flower) -> None:
    before = flower.json("/workers?json=1")["data"][0]["processed"]
    with flower.running() as job_id:
        wait_until(
            lambda: flower.json("/workers?json=1")["data"][0]["active"] == 1,
            "it counts running jobs",
        )
    flower.ours.wait(job_id)
    wait_until(
        lambda: flower.json("/workers?json=1")["data"][0]["active"] == 0, "none runs any more"
    )
    (worker,) = flower.json("/workers?json=1")["data"]
    assert (worker["hostname"], worker["status"]) == (NODE, True)
    assert worker["processed"] - before == 1
    assert NODE in flower.read("/workers")


def test_a_workers_page(flower: Flower) -> None:
    page = flower.read(f"/worker/{NODE}")
    for word in ("headrace.gated", "headrace.still", "headrace:control", "headrace.predict"):
        assert word in page
    told = flower.json(f"/api/workers?refresh=1&workername={NODE}")[NODE]
    assert told["stats"]["headrace"]["gated"]["state"] == "ready"
    assert "these weights are for another model" in told["stats"]["headrace"]["still"]["error"]


def test_queues_have_their_true_lengths_over_all_priorities(flower: Flower) -> None:
    flower.json("/api/workers?refresh=1")
    ids = [
        job_id
        for priority, count in ((0, 3), (4, 2), (9, 1))
        for job_id in flower.ours.submit("still", *range(count), priority=priority)
    ]
    lengths = {
        queue["name"]: queue["messages"]
        for queue in flower.json("/api/queues/length")["active_queues"]
    }
    assert lengths == {"headrace.still": 6, "headrace.gated": 0, "headrace:control": 0}
    page = flower.read("/broker")
    assert "headrace.still" in page
    flower.ours.redis.delete(*keys.step_keys("headrace.still"), *map(keys.job, ids))


def test_a_job_with_name_state_arguments_and_runtime(flower: Flower) -> None:
    with stock_client(flower.redis_url) as app:
        image = b"\x89PNG" + SECRET.encode() * 100
        binary = send(app, "gated", image)
        good = send(app, "gated", {"do": "sleep", "s": 0.2})
        bad = send(app, "gated", {"do": "raise", "n": SECRET[:3]})
        assert binary.get(timeout=GET_TIMEOUT_S) == image
        good_task, binary_task = flower.wait_for("SUCCESS", good.id, binary.id)
        (bad_task,) = flower.wait_for("FAILURE", bad.id)
    assert good_task["name"] == "headrace.predict"
    assert good_task["kwargs"] == "{'model': 'gated', 'input': '<json, 25 bytes>'}"
    assert good_task["result"] == '{"do":"sleep","s":0.2}'
    assert good_task["worker"] == NODE
    assert 0.2 <= good_task["runtime"] < 5
    assert good_task["received"] <= good_task["started"] < good_task["succeeded"]
    assert binary_task["kwargs"] == (
        f"{{'model': 'gated', 'input': '<bytes, {len(image)} bytes>'}}"
    )
    assert binary_task["result"] == f"<application/octet-stream, {len(image)} bytes>"
    assert bad_task["exception"] == "HandlerError('ValueError: cannot do the')"
    assert "raise ValueError" in bad_task["traceback"]
    page = flower.read(f"/task/{binary.id}")
    assert "application/octet-stream" in page
    everything = flower.read("/api/tasks") + page + flower.read("/tasks")
    assert SECRET not in everything


def test_a_running_job_is_started(flower: Flower) -> None:
    with flower.running() as job_id:
        flower.wait_for("STARTED", job_id)
    flower.wait_for("SUCCESS", job_id)


def test_terminate_cancels(flower: Flower) -> None:
    with flower.running() as job_id:
        flower.wait_for("STARTED", job_id)
        flower.json(f"/api/task/revoke/{job_id}?terminate=true", {})
        wait_until(lambda: flower.ours.job(job_id).cancel_asked, "the worker has heard of it")
    (job,) = flower.ours.wait(job_id)
    assert job.state is State.CANCELLED
    flower.wait_for("REVOKED", job_id)


def test_metrics_name_the_worker_and_the_task(flower: Flower) -> None:
    flower.ours.wait(*flower.ours.submit("gated", 1))
    wait_until(lambda: "task-succeeded" in flower.read("/metrics"), "Flower counts it")
    text = flower.read("/metrics")
    wanted = f'flower_events_total{{task="{keys.TASK_NAME}",type="task-succeeded",worker="{NODE}"}}'
    assert wanted in text
