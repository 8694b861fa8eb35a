"""The background worker under kill -9: what it has taken is done again, by it or by another."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from headrace.redis import keys
from headrace.server import recovery
from headrace.server.health.liveness import WorkerLiveness, live_background_workers
from tests.harness.processes.processes import suspend
from tests.harness.servers.redis_servers import RedisServer, nothing_leaks, redis_server
from tests.harness.servers.up import running_up
from tests.harness.wait import wait_until
from tests.harness.workers.slow_background import BEGUN, DONE, GATE
from tests.harness.workers.worker import Worker, celery_worker, write_models

TASKS = ("-I", "tests.harness.workers.slow_background")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server("valkey9", "--appendonly", "yes", "--appendfsync", "always") as made:
        yield made


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_models(tmp_path, echo={"handler": "echo"})


def background_worker(server: RedisServer, models: Path, folder: Path, owner: str) -> Any:
    return celery_worker(
        server.url, models, folder, node=f"{owner}@test", app="workers.background.app",
        environ={"HEADRACE_INCARNATION": owner}, arguments=TASKS,
    )  # fmt: skip


def send(server: RedisServer, *names: str) -> None:
    for name in names:
        send_task(server, "test.gated", name)


def send_task(server: RedisServer, task: str, *arguments: str, **options: bool) -> None:
    """As any Celery client sends."""
    with Celery(broker=server.url, set_as_current=False) as app:
        app.send_task(task, arguments, options, queue=keys.BACKGROUND_TASKS)


def words(client: Any, key: str) -> list[str]:
    return [raw.decode() for raw in client.lrange(key, 0, -1)]


def begun(client: Any, *names: str) -> None:
    wait_until(
        lambda: set(names) <= {word.split()[0] for word in words(client, BEGUN)},
        f"{names} have begun", 60,
    )  # fmt: skip


def open_gate(client: Any, *names: str) -> None:
    client.set(GATE, "1")
    wait_until(lambda: set(words(client, DONE)) == set(names), "all background tasks are done", 60)


def nothing_held(client: redis.Redis) -> None:
    def settled() -> bool:
        held = [
            *client.scan_iter("hr:background:held:*"),
            *client.scan_iter("hr:background:taken:*"),
        ]
        return not held and not client.llen(keys.BACKGROUND_TASKS)

    wait_until(settled, "nothing is held any more", 30)
    client.delete(BEGUN, DONE, GATE)
    nothing_leaks(client)


def test_killed_in_the_middle_of_a_task_it_is_done_again(
    server: RedisServer, models: Path, tmp_path: Path
) -> None:
    names = [f"n{n}" for n in range(6)]  # the last of them are killed while they are taken
    with server.client() as client, ExitStack() as stack:
        first: Worker = stack.enter_context(background_worker(server, models, tmp_path, "first"))
        send(server, *names)
        begun(client, "n0", "n1")
        first.kill()
        # It says nothing any more, and nobody has to say that it is gone: what it said runs out.
        assert 0 < client.ttl(keys.background_alive("first")) <= keys.BACKGROUND_TTL_S
        client.expire(keys.background_alive("first"), 1)
        stack.enter_context(background_worker(server, models, tmp_path, "second"))

        def again() -> bool:
            said = [word.split()[0] for word in words(client, BEGUN)]
            return said.count("n0") == 2 and said.count("n1") == 2

        wait_until(again, "they have begun again", 60)
        open_gate(client, *names)
        nothing_held(client)


def test_redis_killed_while_tasks_run(server: RedisServer, models: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        stack.enter_context(background_worker(server, models, tmp_path, "only"))
        with server.client() as client:
            send(server, "a", "b")
            begun(client, "a", "b")
        server.stop(kill=True)
        server.start()
        with server.client() as client:
            send(server, "c")
            begun(client, "c")
            open_gate(client, "a", "b", "c")
            nothing_held(client)


def test_what_is_no_message_is_dropped_and_hinders_nothing(
    server: RedisServer, models: Path, tmp_path: Path
) -> None:
    with server.client() as client, background_worker(server, models, tmp_path, "only") as worker:
        client.rpush(keys.BACKGROUND_TASKS, b"\xff", b"[]", b'{"properties": {}}')
        send(server, "after")
        open_gate(client, "after")
        with Celery(broker=server.url, set_as_current=False) as app:
            for command in ("pool_grow", "pool_shrink", "autoscale", "pool_restart"):
                answers: Any = app.control.broadcast(command, reply=True, timeout=30, limit=1)
                (answer,) = answers
                assert "background worker" in answer["only@test"]["error"]
            # Every worker hears it, and the job is none of this one's.
            app.control.revoke("a-models-job")
            wait_until(
                lambda: worker.says("flagged as revoked", "a-models-job"), "it was heard", 60
            )
        assert not worker.says("Failed to mark", "a-models-job")
        assert worker.log.count("not a Celery message") == 3
        nothing_held(client)


def test_the_account(redis_db: RedisServer) -> None:
    with redis_db.client() as client:
        for owner in ("dead", "live"):
            client.sadd(keys.BACKGROUND_WORKERS, owner)
            client.rpush(keys.background_taken(owner), f"{owner} taken")
            client.hset(keys.background_held(owner), "tag", f"{owner} held")
        alive = WorkerLiveness("background@elsewhere", 1)
        assert recovery.report_alive(client, "live", alive) == 2
        assert client.lrange(keys.BACKGROUND_TASKS, 0, -1) == [b"dead taken", b"dead held"]
        assert client.exists(keys.background_taken("live"), keys.background_held("live")) == 2
        assert live_background_workers(client) == [alive]
        assert 0 < client.ttl(keys.background_alive("live")) <= keys.BACKGROUND_TTL_S
        # Its connection was lost: what came over it goes back, and it lives on.
        assert recovery.report_alive(client, "live", alive, "live") == 2
        assert client.smembers(keys.BACKGROUND_WORKERS) == {b"live"}
        client.hset(keys.background_held("live"), "tag", "again")
        assert recovery.requeue_tasks(redis_db.url, "live") == 1
        assert live_background_workers(client) == []
        assert client.lrange(keys.BACKGROUND_TASKS, -1, -1) == [b"again"]
        client.delete(keys.BACKGROUND_TASKS)


@pytest.mark.slow
def test_up_starts_one_and_gives_back_what_it_held(server: RedisServer, tmp_path: Path) -> None:
    arguments = ("--workers", "0")
    with (
        running_up(tmp_path, *arguments, background=True, HEADRACE_REDIS_URL=server.url) as up,
        server.client() as client,
    ):
        pid = up.record()["pids"]["background"]
        owners: Any = client.smembers(keys.BACKGROUND_WORKERS)
        (owner,) = owners
        suspend(pid)
        # As if it were in the middle of a task, which nobody here has.
        client.hset(keys.background_held(owner.decode()), "tag", b"some task")
        os.kill(pid, signal.SIGKILL)
        up.wait_for("requeued 1 background tasks of background@")
        wait_until(lambda: up.record()["pids"].get("background", pid) != pid, "it is back", 60)
        up.wait_for("not a Celery message")
        assert up.stop() == 0
        # It left in order, and nothing waits for it to be missed.
        assert not client.exists(keys.BACKGROUND_TASKS)
