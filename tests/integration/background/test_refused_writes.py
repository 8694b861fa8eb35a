"""Redis dies, is full or read-only under a background worker or a worker, which go on for ever."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.redis import keys
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Worker, celery_worker, write_models
from tests.integration.background.test_background import (
    background_worker,
    nothing_held,
    send_task,
)

#: What Celery says each time that it has lost its connection, or could not use a new one.
LOST = ("Connection to broker lost", "Cannot connect to redis")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    flavour = getattr(request, "param", "valkey9")
    with redis_server(flavour, "--appendonly", "yes", "--appendfsync", "always") as made:
        yield made


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_models(tmp_path, echo={"handler": "echo"})


@contextmanager
def full(client: Any) -> Iterator[None]:
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


@contextmanager
def read_only(client: Any) -> Iterator[None]:
    """It is the replica of a server that is not there."""
    client.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        client.replicaof("NO", "ONE")


def losses(worker: Worker) -> int:
    return sum(worker.log.count(text) for text in LOST)


def lost_again(worker: Worker, times: int) -> None:
    """Wait until it has lost its connection so many times more."""
    before = losses(worker)

    def lost() -> bool:
        assert worker.process is not None
        assert worker.process.poll() is None, worker.log[-4000:]
        return losses(worker) >= before + times

    wait_until(lost, f"{worker.node} has tried {times} times", 120)


def sockets(worker: Worker) -> int:
    names = []
    for file in os.scandir(f"/proc/{worker.pid}/fd"):
        try:
            names.append(os.readlink(file))
        except FileNotFoundError:
            continue
    return sum(name.startswith("socket:") for name in names)


def test_a_task_that_is_rejected_after_redis_died_ends_nothing(
    server: RedisServer, models: Path, tmp_path: Path
) -> None:
    """So a webhook ends whose outcome could not be stored."""
    runs = tmp_path / "runs"
    runs.mkdir()
    with background_worker(server, models, tmp_path, "only") as worker:
        send_task(server, "test.filed", str(runs), rejected=True)
        wait_until((runs / "run-0").exists, "it runs", 60)
        server.stop(kill=True)
        server.start()
        # What came over the lost connection was requeued, so that it runs a second time.
        wait_until((runs / "run-1").exists, "it runs again", 60)
        (runs / "gate").touch()
        wait_until((runs / "rejected").exists, "the first run gives back a message", 60)
        wait_until((runs / "done-1").exists, "the second run ends", 60)
        with server.client() as client:
            nothing_held(client)
        send_task(server, "test.filed", str(runs))
        wait_until((runs / "done-2").exists, "the worker lives", 60)
        assert worker.process is not None
        assert worker.process.poll() is None


@pytest.mark.parametrize("server", ["redis62", "redis7", "valkey9"], indirect=True)
@pytest.mark.parametrize("when", ["at its start", "while it runs", "after a lost connection"])
def test_a_full_redis_is_served_by_a_background_worker(
    server: RedisServer, models: Path, tmp_path: Path, when: str
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "gate").touch()
    with server.client() as client:

        def serves(worker: Worker) -> None:
            wait_until(lambda: len(list(runs.glob("done-*"))) == 2, "both have run", 60)
            wait_until(lambda: not client.hlen(held), "both are acknowledged", 30)
            client.expire(alive, 1)
            wait_until(lambda: client.ttl(alive) > 1, "it says that it is alive", 30)
            assert worker.process is not None
            assert worker.process.poll() is None

        held, alive = keys.background_held("only"), keys.background_alive("only")
        send_task(server, "test.filed", str(runs))
        send_task(server, "test.filed", str(runs))
        if when == "at its start":
            with full(client), background_worker(server, models, tmp_path, "only") as worker:
                serves(worker)
            return
        tasks: Any = client.lrange(keys.BACKGROUND_TASKS, 0, -1)
        client.delete(keys.BACKGROUND_TASKS)
        with background_worker(server, models, tmp_path, "only") as worker:
            wait_until(lambda: "ready." in worker.log, "it is ready", 60)
            client.rpush("spare", *tasks)
            with full(client):
                if when == "after a lost connection":
                    client.client_kill_filter(_type="normal", skipme=True)
                    lost_again(worker, 0)
                client.eval(
                    "for _ = 1, 2 do redis.call('LPUSH', KEYS[2], redis.call('RPOP', KEYS[1])) end",
                    2, "spare", keys.BACKGROUND_TASKS,
                )  # fmt: skip
                serves(worker)


@pytest.mark.parametrize("at_start", [True, False])
def test_a_read_only_redis_is_waited_for_by_a_background_worker(
    server: RedisServer, models: Path, tmp_path: Path, *, at_start: bool
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "gate").touch()
    with server.client() as client, ExitStack() as stack:
        with ExitStack() as refusal:
            if at_start:
                refusal.enter_context(read_only(client))
            worker: Worker = stack.enter_context(
                background_worker(server, models, tmp_path, "only")
            )
            if not at_start:
                wait_until(lambda: "ready." in worker.log, "it is ready", 60)
                refusal.enter_context(read_only(client))
            lost_again(worker, 3)
        send_task(server, "test.filed", str(runs))
        wait_until((runs / "done-0").exists, "it runs a task", 60)
        assert worker.process is not None
        assert worker.process.poll() is None


@pytest.mark.parametrize("refuses", [full, read_only])
def test_a_worker_keeps_no_connection_that_is_of_no_use(
    server: RedisServer, models: Path, tmp_path: Path, refuses: Any
) -> None:
    with (
        server.client() as client,
        refuses(client),
        celery_worker(server.url, models, tmp_path) as worker,
    ):
        lost_again(worker, 2)
        before = sockets(worker)
        lost_again(worker, 5)
        assert sockets(worker) <= before + 2
        # Its own connections are not opened anew at once either.
        assert worker.log.count("Redis is away") <= 4 * losses(worker)
