"""Work that is done on a key's behalf: the stages of its pipelines, and its batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extensions.openai.api.files import FileService
from extensions.openai.batches.execution import BatchExecution
from extensions.openai.batches.runner import ACTS_FOR, internal_key
from headrace.access.api_key import Scope
from headrace.client import Client
from headrace.config.model.catalog import load_catalog
from headrace.config.settings import Settings
from headrace.jobs.ids import callback_id
from headrace.redis import keys
from tests.extensions.openai.harness.batches import Batches, line, sdk
from tests.harness.clients.access import http_as, in_flight, make_key, revoke_key
from tests.harness.deployments.pipelines import PipelineSite, pipeline_site
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until

JOBS = "/api/v1/jobs"
ECHO = "/api/v1/models/echo/jobs"
PIECES: dict[str, Any] = {"stages": {"cut": {}, "weigh": {"each": "pieces[*]"}}}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PipelineSite]:
    with redis_server() as server, pipeline_site(server, tmp_path, {"pieces": PIECES}) as running:
        running.background_worker()
        yield running


def test_the_jobs_of_stages_exist_for_manage_alone_and_count_for_no_key(
    site: PipelineSite,
) -> None:
    site.gate.touch()
    _, mine = make_key(site.server, in_flight=1)
    _, other = make_key(site.server)
    key_id = mine.split("_")[1]
    _, chief = make_key(site.server, *Scope)
    with (
        api_server(site.server.url, load_catalog(site.models), auth="on") as guarded,
        http_as(guarded, mine) as http,
        http_as(guarded, other) as stranger,
        http_as(guarded, chief) as manage,
    ):
        made = http.post("/api/v1/models/pieces/jobs", json={"pieces": 3, "size": 10})
        assert made.status_code == 202, made.text
        wait_until(lambda: site.runs("cut"), "the first stage runs", 60)
        stage = f"{JOBS}/{callback_id(made.json()['id'], 'stage/cut/0')}"
        wait_until(lambda: manage.get(stage).json()["status"] == "running", "it is shown so")
        for one in (http, stranger):
            for method in ("GET", "DELETE"):
                assert one.request(method, stage).status_code == 404
        for one in (http, manage):
            assert one.get(JOBS, params={"model": "cut"}).json()["jobs"] == [], "no list has them"
        assert in_flight(site.server) == {key_id: 1}, "the pipeline's job alone"
        refused = http.post("/api/v1/models/pieces/jobs", json={"pieces": 1, "size": 10})
        assert refused.json()["type"] == "/problems/too-many-in-flight"
        site.gate.unlink()
        path = f"{JOBS}/{made.json()['id']}"
        wait_until(lambda: http.get(path).json()["status"] == "succeeded", "it ends", 60)
        assert in_flight(site.server) == {}
        assert http.post("/api/v1/models/pieces/jobs", json={"pieces": 1, "size": 10}).is_success


def test_a_batch_whose_key_is_revoked_has_a_row_for_every_line(redis_db: RedisServer) -> None:
    key_id, key = make_key(redis_db)
    acting = internal_key(redis_db.url)
    lines = [line(f"line-{n}", "echo", n) for n in range(7)]
    offline = keys.step_keys(keys.queue_name("echo"))[-1]
    with (
        api_server(redis_db.url, catalog(echo={}), auth="on") as api,
        sdk(api.url, key) as mine,
        redis_db.client() as redis,
    ):
        made = Batches(mine).create(lines, ECHO)
        files = api.services.of(FileService)

        def execute() -> threading.Thread:
            lease = files.batches.claim()
            assert lease is not None
            client = Client(api.url, api_key=acting, headers={ACTS_FOR: key_id}, retry_s=1)
            execution = BatchExecution(lease, files.store, files.batches, client, Settings())
            thread = threading.Thread(target=execution.run, daemon=True)
            thread.start()
            return thread

        first = execute()
        wait_until(lambda: redis.llen(offline) == 7, "all are queued")
        claimed = claim(redis, "echo", 3)
        settle(redis, "echo", claimed[:2], [Answer(result=b'"done"')] * 2)
        wait_until(lambda: files.batches.get(made.id).completed == 2, "two have their rows", 60)
        revoke_key(redis_db, key_id)
        first.join(60)
        assert not first.is_alive(), "it hears that the key is none"
        redis.zadd("hr:batches:open", {made.id: 0})
        execute().join(60)

        batch = files.batches.get(made.id)
        assert (batch.status, batch.errors[0].code) == ("failed", "unauthorized")
        assert (batch.total, batch.completed, batch.failed) == (7, 2, 5)
        _, chief = make_key(redis_db, *Scope)
        with sdk(api.url, chief) as manage:
            good, bad = Batches(manage).both(manage.batches.retrieve(made.id))
        assert sorted([*good, *bad]) == [f"line-{n}" for n in range(7)]
        assert {row["error"]["code"] for row in bad.values()} == {"batch_unauthorized"}
        assert all(row["response"] is None for row in bad.values())
        # What waited is not run; what a worker held is cancelled once it has ended.
        settle(redis, "echo", claimed[2:], [Answer()])
        assert claim(redis, "echo") == []
        states = [redis.hget(keys.job(f"{made.id}.{n}"), "s") for n in range(7)]
        # What has its row of a result is forgotten, perhaps by now.
        assert set(states[:2]) <= {b"s", None}
        assert states[2:] == [b"c"] * 5
        assert in_flight(redis_db) == {}
        redis.flushall()  # files are kept for days
