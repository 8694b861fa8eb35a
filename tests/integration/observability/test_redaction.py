"""A password in an error's text is nowhere to be read: in Redis, in events, over HTTP, in a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.config.model.catalog import load_catalog
from tests.harness.clients.access import http_as, make_key
from tests.harness.clients.celery_client import Events, stock_client
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import celery_worker, write_models

#: Of a URL, and of the worker's environment.
IN_URL, KNOWN = "geheim-1234", "sesame-5678"
HANDLERS = f"""
import os
from headrace import Handler

def error(name):
    known = os.environ["AWS_SESSION_TOKEN"]
    return OSError(f"no answer: s3://me:{IN_URL}@bucket/{{name}}, {{known}}")

class Failing(Handler):
    def inference(self, items):
        raise error("file")

class Broken(Failing):
    def initialize(self, context):
        raise error("weights")
"""


def contents(client: Any) -> str:
    """All that Redis holds."""
    found: list[Any] = []
    for key in client.scan_iter(count=1000):
        kind = client.type(key)
        if kind == b"hash":
            found += [client.hgetall(key)]
        elif kind == b"list":
            found += client.lrange(key, 0, -1)
        elif kind == b"string":
            found += [client.get(key)]
    return repr(found)


def test_a_secret_in_an_error_is_shown_to_nobody(redis_db: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HANDLERS)
    models = write_models(
        tmp_path,
        broken={"handler": "mine.py:Broken"},
        failing={"handler": "mine.py:Failing", "max_retries": 0},
    )
    environ = {"AWS_SESSION_TOKEN": KNOWN}
    with (
        celery_worker(redis_db.url, models, tmp_path, environ=environ) as worker,
        api_server(redis_db.url, load_catalog(models), auth="on") as api,
        http_as(api, make_key(redis_db)[1]) as http,
        redis_db.client() as client,
        stock_client(redis_db.url) as app,
        Events(app) as events,
    ):
        worker.wait_ready("failing")
        read: list[Any] = []

        def loaded() -> bool:
            read[:] = [http.get("/api/v1/models/broken").json()]
            return "no answer" in str(read)

        wait_until(loaded, "the load has failed", 60)
        path = "/api/v1/models/failing/jobs"
        job = http.post(path, json=1, params={"wait": "60"}).json()
        assert "no answer: s3://me:***@bucket/file, ***" in job["error"]["message"]
        events.wait_for("failed", job["id"])
        read += [job, events.of(job["id"]), contents(client), worker.log]
        inspect = app.control.inspect(timeout=30, limit=1)
        read += [inspect.stats()]

        # Without a key there is no text at all.
        ready = api.http.get("/ready").json()
        everything = api.http.get("/ready?models=all").json()
        for models in (ready["models"], everything["models"]):
            # It may be loading again.
            assert models["broken"].keys() == {"state", "ready_replicas"}
        for text in map(str, read):
            assert "s3://me:***@" in text
            assert IN_URL not in text
            assert KNOWN not in text
        client.flushall()
