"""What is no Celery message on the queue and the channels of remote control ends no worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.celery_client import raw_message, stock_client
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import celery_worker, write_models

CONTROL = "headrace:control"
SAID = "not a Celery message"
BAD = [
    b"nonsense", b"1", b"[]", b"{}", b"\xff\xfe", b"[" * 5000, b'{"body":"","headers":{}}',
    b'{"properties":null}', b'{"properties":{}}', b'{"properties":{"delivery_tag":"a"}}',
    raw_message("a", "x", body_encoding="rot13"),
    raw_message("a", "x").replace(b'"headers": {', b'"headers": [], "x": {'),
    raw_message("a", "!", body_encoding="base64"),
]  # fmt: skip


@pytest.mark.leaves_keys
def test_a_worker_goes_on(redis_db: RedisServer, tmp_path: Path) -> None:
    models = write_models(tmp_path, echo={"handler": "echo"})
    with (
        celery_worker(redis_db.url, models, tmp_path) as worker,
        redis_db.client() as client,
        stock_client(redis_db.url) as app,
    ):
        worker.wait_ready("echo")
        wait_until(lambda: "cpu0@test ready" in worker.log, "Celery is connected")
        began = worker.log.count("celery.worker.consumer.connection: Connected")
        for raw in BAD:
            client.lpush(CONTROL, raw)
        wait_until(lambda: worker.log.count(SAID) >= len(BAD), "all are dropped", 60)
        for raw in (b"nonsense", b"{}", b"[]"):
            client.publish("/0.celery.pidbox", raw)
        wait_until(lambda: "pidbox dropped" in worker.log, "and those of the channel", 60)
        said: Any = app.control.inspect(timeout=30, limit=1).ping()
        assert said == {worker.node: {"ok": "pong"}}
        assert worker.process is not None
        assert worker.process.poll() is None
        assert worker.log.count("celery.worker.consumer.connection: Connected") == began
        client.flushall()
