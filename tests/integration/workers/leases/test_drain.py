"""A worker that an operator drains over the API: it ends what runs, and claims nothing more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import Client
from headrace.client import Worker
from headrace.config.model.catalog import load_catalog
from headrace.errors import Conflict, WorkerNotFound
from headrace.observability.worker_report import DeviceFigures, Figures, HostFigures
from headrace.redis import keys
from tests.harness.clients.batch_models import BatchLog
from tests.harness.clients.commands import CommandsWithin
from tests.harness.fakes.worker import publish_state
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import RedisServer, leaked_keys, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import celery_worker, write_models

NODES = ("one@test", "two@test")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> BatchLog:
    return BatchLog(tmp_path_factory.mktemp("drain"))


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(scope="module")
def api(server: RedisServer, log: BatchLog) -> Iterator[ApiServer]:
    """An API with two workers, which run one job at a time and claim one more."""
    path = write_models(log.folder, m=log.model(max_batch_size=1, gated=True))
    with (
        celery_worker(server.url, path, log.folder, node=NODES[0]) as one,
        celery_worker(server.url, path, log.folder, node=NODES[1]) as two,
        api_server(server.url, load_catalog(path)) as running,
    ):
        for worker in (one, two):
            worker.wait_ready("m")
        yield running


@pytest.fixture
def client(api: ApiServer) -> Iterator[Client]:
    with Client(api.url) as connected:
        yield connected


def worker_of(client: Client, node: str) -> Worker:
    (found,) = [worker for worker in client.workers() if worker.node == node]
    return found


def test_a_drained_worker_ends_what_runs_and_leaves_the_rest_to_others(
    api: ApiServer, client: Client, server: RedisServer, log: BatchLog
) -> None:
    one, two = (worker_of(client, node) for node in NODES)
    assert one.can_drain
    assert one.host is not None
    assert (one.state, one.jobs, one.models[0].ready_replicas) == ("serving", 0, 1)
    assert one.started_at is not None
    assert one.models[0].processes[0].pid not in (one.pid, two.models[0].processes[0].pid)
    ids = [client.submit("m", n).id for n in range(8)]
    wait_until(
        lambda: all(worker_of(client, node).jobs >= 1 for node in NODES), "both workers hold jobs"
    )
    wait_until(lambda: len(log.lines()) == 2, "both run one")
    assert client.drain_worker(NODES[0]).state == "draining"
    # It has given back what it had not begun, and runs the other one.
    wait_until(lambda: worker_of(client, NODES[0]).jobs == 1, "it holds what it runs")
    assert worker_of(client, NODES[0]).state == "draining"
    log.open_gate()
    for job_id in ids:
        assert client.wait(job_id).status == "succeeded"
    wait_until(lambda: worker_of(client, NODES[0]).state == "drained", "nothing is left there")
    assert client.model("m").ready_replicas == 1
    assert client.drain_worker(two.worker).worker == two.worker
    wait_until(lambda: worker_of(client, NODES[1]).state == "drained", "the other one, too")
    assert client.model("m").state == "draining"
    waiting = client.submit("m", 9).id
    assert client.status(waiting).status == "queued"
    assert client.resume_worker(one).state == "serving"
    assert client.wait(waiting).status == "succeeded"
    wait_until(lambda: worker_of(client, NODES[0]).state == "serving", "it says so")
    assert worker_of(client, NODES[1]).state == "drained"
    client.resume_worker(two)
    with server.client() as redis:
        assert [name for name in leaked_keys(redis) if name.startswith("hr:drain")] == []
    asked = [(entry.action, entry.detail) for entry in client.audit()]
    assert asked[0] == ("resume_worker", NODES[1])
    assert ("drain_worker", NODES[0]) in asked


def test_what_the_commands_say(api: ApiServer, log: BatchLog) -> None:
    commands = CommandsWithin(api.url, log.folder)
    drained = commands.run("workers", "drain", NODES[0])
    assert drained.stdout.decode() == f"{NODES[0]}  draining\n"
    table = commands.run("workers").stdout.decode()
    assert [line.split()[0] for line in table.splitlines()[1:]] == list(NODES)
    assert "m 1/1" in table
    assert commands.run("workers", "resume", NODES[0]).returncode == 0
    unknown = commands.run("workers", "drain", "three@test")
    assert unknown.returncode == 4
    assert b"there is no live worker 'three@test'" in unknown.stderr
    audited = commands.run("audit", "--limit", "1").stdout.decode().splitlines()
    assert "resume_worker" in audited[1]


def test_what_is_not_known_is_null_and_what_cannot_drain_is_refused(
    client: Client, server: RedisServer
) -> None:
    figures = Figures(
        host=HostFigures(name="gpu-1", cpus=8),
        devices=[DeviceFigures(id="0", name="H200", busy_ratio=0.5), DeviceFigures(id="1")],
        models={"m": 5},
        gpu_processes={4711: 7},
    )
    with server.client() as redis:
        publish_state(redis, "old", "m", "ready", figures=figures)
        try:
            old = worker_of(client, "old@test")
            assert (old.can_drain, old.started_at, old.version) == (False, None, "")
            assert [device.busy_ratio for device in old.devices] == [0.5, None]
            assert (old.models[0].memory_bytes, old.models[0].processes) == (5, [])
            with pytest.raises(Conflict, match="cannot be drained"):
                client.drain_worker(old)
        finally:
            redis.delete(keys.worker("old"))
            redis.zrem(keys.WORKERS, "old")
    with pytest.raises(WorkerNotFound):
        client.resume_worker("old@test")
