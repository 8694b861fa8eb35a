"""Back up a Redis that is in use, and bring it back on another: docs/operations.md, for real."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace import Client
from headrace.errors import InputUnavailable, JobNotFound
from headrace.server.ports import free_port
from tests.harness.clients.batch_models import BatchLog
from tests.harness.servers.api_process import api_process
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import celery_worker, write_models

LONG = "x" * 50_000
TTL_S = 3600
DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec")


@contextmanager
def deployment(server: RedisServer, folder: Path, payloads: Path, models: Path) -> Iterator[Client]:
    """A worker and an API with payloads in files; killed at the end."""
    own = {"payload_store": "file", "payload_dir": str(payloads), "lease_ttl_s": "1"}
    environ = {f"HEADRACE_{name.upper()}": value for name, value in own.items()}
    with ExitStack() as stack:
        worker = stack.enter_context(celery_worker(server.url, models, folder, environ=environ))
        api = stack.enter_context(api_process(server.url, models, **own))
        worker.wait_ready("echo", "held")
        yield stack.enter_context(Client(api.url, retry_s=60))


def back_up_rdb(client: Any, source: Path, copy: Path) -> None:
    """A snapshot, and its file."""
    client.execute_command("BGSAVE", "SCHEDULE")
    # It gets its name when it is whole.
    wait_until(lambda: (source / "dump.rdb").exists(), "the snapshot", 60)
    assert client.info("persistence")["rdb_last_bgsave_status"] == "ok"
    shutil.copy2(source / "dump.rdb", copy)


def back_up_aof(client: Any, source: Path, copy: Path) -> None:
    """The append-only files, none of which may be replaced while they are copied."""
    client.config_set("auto-aof-rewrite-percentage", 0)
    with client.client() as one:
        # A write waits for a slow fsync before it, for up to two seconds. Once this marker is in
        # the file, all that was written before it is too.
        one.set("marker", 1, ex=60)
        assert one.execute_command("WAITAOF", 1, 0, 60_000)[0] == 1
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "no rewrite", 60)
    shutil.copytree(source / "appendonlydir", copy / "appendonlydir")
    client.config_set("auto-aof-rewrite-percentage", 100)


def copied(source: str, copy: str) -> None:
    """A payload; one that is deleted meanwhile, as its job has ended, is needed by nobody."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, copy)


def restore_rdb(server: RedisServer) -> None:
    """A server with AOF does not read a snapshot: it is started without, and told to write one."""
    server.start()
    with server.client() as client:
        assert client.dbsize() == 0, "as operations.md warns"
    server.stop(kill=True)
    shutil.rmtree(server.folder / "appendonlydir")
    server.arguments = ()
    server.start()
    with server.client() as client:
        client.config_set("appendonly", "yes")
        wait_until(
            lambda: (
                (now := client.info("persistence"))["aof_last_bgrewrite_status"] == "ok"
                and not now["aof_rewrite_in_progress"]
                and not now["aof_rewrite_scheduled"]
            ),
            "the append-only file is written",
            60,
        )
    server.stop()
    server.arguments = DURABLE
    server.start()


def restore_aof(server: RedisServer) -> None:
    server.start()


@pytest.mark.parametrize(
    ("back_up", "restore"),
    [
        pytest.param(back_up_rdb, restore_rdb, id="a snapshot"),
        pytest.param(back_up_aof, restore_aof, id="the append-only files", marks=pytest.mark.slow),
    ],
)
def test_what_was_backed_up_in_use_ends_on_another_server(
    back_up: Any, restore: Any, tmp_path: Path
) -> None:
    log, payloads, copy = BatchLog(tmp_path), tmp_path / "payloads", tmp_path / "copy"
    copy.mkdir()
    models = write_models(
        tmp_path, echo={"handler": "echo"}, held=log.model(gated=True, max_batch_size=2)
    )
    with (
        redis_server("valkey9", *DURABLE) as server,
        server.client() as redis,
        deployment(server, tmp_path, payloads, models) as client,
    ):
        ended = [client.submit("echo", value, result_ttl=TTL_S) for value in (1, LONG)]
        assert [client.result(job) for job in ended] == [1, LONG]
        held = [client.submit("held", value) for value in (1, 2, 3, LONG, LONG + "lost")]
        later = client.submit("echo", "later", countdown=2)
        wait_until(lambda: log.lines("held"), "a batch of them runs")
        back_up(redis, server.folder, copy)
        # Payloads after Redis: whatever Redis names is there, and more.
        shutil.copytree(payloads, copy / "payloads", copy_function=copied)
        log.open_gate()
        after = client.submit("echo", "after the backup")
        assert [len(str(client.result(job))) for job in held] == [1, 1, 1, 50_000, 50_004]
    ran_before = len(log.lines("held"))
    shutil.rmtree(payloads)
    lost = max((copy / "payloads").rglob("*"), key=lambda one: one.is_file() and one.stat().st_size)
    lost.unlink()

    fresh = RedisServer("valkey9", free_port(), copy, DURABLE)
    try:
        restore(fresh)
        with deployment(fresh, tmp_path, copy / "payloads", models) as client:
            assert [client.result(job.id) for job in ended] == [1, LONG], "what had ended is there"
            *good, gone = held
            assert [client.result(job.id) for job in good] == [1, 2, 3, LONG], "run again"
            with pytest.raises(InputUnavailable):
                client.result(gone.id)
            assert client.result(later.id) == "later"
            with pytest.raises(JobNotFound):
                client.status(after.id)
            assert len(log.lines("held")) > ran_before
            assert client.status(good[0].id).attempts >= 2, "it was leased when it was backed up"
            with fresh.client() as redis:
                left_s: Any = redis.ttl(f"hr:job:{ended[0].id}")
                assert 0 < left_s <= TTL_S, "times are absolute: they went on meanwhile"
                assert not redis.exists("hr:lease:headrace.held")
    finally:
        fresh.stop(kill=True)
