"""Redis found by a real Sentinel, through a failover that it makes by itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from headrace.config.model.catalog import load_catalog
from headrace.redis.compatibility import check_broker
from headrace.redis.url import celery_url
from headrace.server.ports import free_port
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import redis_server, require
from tests.harness.wait import wait_until
from tests.harness.workers.worker import celery_worker, write_models

CONFIG = """port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor main 127.0.0.1 {primary} 1
sentinel down-after-milliseconds main 500
sentinel failover-timeout main 5000
"""

#: A Sentinel that stood still for two seconds does nothing for thirty.
LIMIT_S = 150


@contextmanager
def sentinel(folder: Path, primary: int) -> Iterator[int]:
    """The port of a Sentinel that watches a primary and knows its replica."""
    port, config = free_port(), folder / "sentinel.conf"
    config.write_text(CONFIG.format(port=port, folder=folder, primary=primary))
    command = [require("redis7"), str(config), "--sentinel"]
    with (folder / "sentinel.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with redis.Redis(port=port) as client:
            asked: Any = client

            def knows_the_replica() -> bool:
                try:
                    return bool(asked.sentinel_slaves("main"))
                except redis.ConnectionError:
                    return False

            wait_until(knows_the_replica, "the replica is known", LIMIT_S)
        yield port
    finally:
        process.kill()
        process.wait(60)


def test_a_failover_by_sentinel(tmp_path: Path) -> None:
    models = write_models(tmp_path, echo={"handler": "echo"})
    with (
        redis_server("redis7") as primary,
        redis_server("redis7", "--replicaof", f"127.0.0.1 {primary.port}"),
        sentinel(tmp_path, primary.port) as port,
    ):
        url = f"sentinel://127.0.0.1:{port}/0?master=main"
        assert check_broker(url).name == "redis"
        with (
            celery_worker(url, models, tmp_path) as worker,
            api_server(url, load_catalog(models)) as api,
        ):

            def served() -> bool:
                body = {"model": "echo", "input": 1}
                answer = api.http.post("/api/v1/jobs?wait=10", json=body)
                return str(answer.json().get("status")) == "succeeded"

            wait_until(served, "a job is served", LIMIT_S)
            primary.stop(kill=True)
            wait_until(served, "a job is served by the new primary", LIMIT_S)
            found = celery_url(url)
            with Celery("t", broker=found.url, set_as_current=False) as app:
                app.conf.broker_transport_options = found.transport_options
                wait_until(lambda: app.control.ping(timeout=2), "Celery's own part too", 90)
            assert worker.process is not None
            assert worker.process.poll() is None
