"""A pipeline's job that is being settled while its lease is renewed, or while it is cancelled."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from typing_extensions import override

from headrace.config.model.catalog import Catalog, load_catalog
from headrace.config.settings import Settings
from headrace.errors import BrokerUnavailable
from headrace.jobs.ids import new_id
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.scripts import Command, script
from tests.harness.fakes.worker import FakeWorker
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from workers.background.pipelines import orchestrator
from workers.background.pipelines.orchestrator import PipelineOrchestrator
from workers.background.pipelines.stage_state import stage_job_id

#: None of these tests may be helped by a lease that runs out.
LEASE_TTL_S = 3600.0
LIMIT_S = 30

Call = Callable[[], Awaitable[Any]]
#: Makes the answer to a settlement, given the call that says it and one that has leases renewed.
Meanwhile = Callable[[Call, Call], Awaitable[Any]]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    path = tmp_path / "models.yaml"
    stages = {"one": {"model": "echo"}, "two": {"model": "echo"}}
    models = {"echo": {"handler": "echo"}}
    path.write_text(yaml.safe_dump({"models": models, "pipelines": {"row": {"stages": stages}}}))
    return load_catalog(path)


@contextmanager
def orchestrating(
    url: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile
) -> Iterator[None]:
    """An orchestrator in which the first settlement goes as `meanwhile` says, and an echo model."""
    settings = Settings(redis_url=url, lease_ttl_s=LEASE_TTL_S)
    running = PipelineOrchestrator(settings, catalog, url, "owner", "background@test")
    settled = threading.Event()

    class Slow(JobQueue):
        @override
        async def call_once(self, call: Command) -> Any:
            call_once = super().call_once
            if call[1] == script("jobs/renew").sha:
                answer = await call_once(call)
                self.renewed.set()
                return answer
            if call[1] != script("jobs/settle").sha or settled.is_set():
                return await call_once(call)
            settled.set()

            async def renew() -> None:
                self.renewed = asyncio.Event()
                running._renew_at = 0.0
                running._woken.set()
                await asyncio.wait_for(self.renewed.wait(), LIMIT_S)

            return await meanwhile(lambda: call_once(call), renew)

        renewed = asyncio.Event()

    monkeypatch.setattr(orchestrator, "JobQueue", Slow)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        with FakeWorker(url, "echo"):
            yield
    finally:
        running.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "the orchestrator did not stop"


def submit(api: ApiServer) -> str:
    job_id = new_id()
    answer = api.http.put(f"/api/v1/jobs/{job_id}", json={"model": "row", "input": [1]})
    assert answer.status_code in (200, 202), answer.text
    return job_id


def only_its_own(server: RedisServer, job_id: str) -> None:
    """Nothing is left of its stages' jobs."""
    ids = [stage_job_id(job_id, name, 0) for name in ("one", "two")]
    names = [name(one) for one in ids for name in (keys.job, keys.meta)]
    with server.client() as client:
        wait_until(lambda: not client.exists(*names), "the stages' records are removed", LIMIT_S)


def test_a_renewal_that_comes_right_behind_the_settlement_takes_it_for_no_ones_but_ours(
    redis_db: RedisServer,
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def renewed_before_it_is_answered(settle: Call, renew: Call) -> Any:
        answer = await settle()
        await renew()
        await asyncio.sleep(0)  # who takes it for lost stops it here
        return answer

    caplog.set_level(logging.WARNING, "workers")
    with (
        api_server(redis_db.url, catalog) as api,
        orchestrating(redis_db.url, catalog, monkeypatch, renewed_before_it_is_answered),
    ):
        job_id = submit(api)
        assert api.ended(job_id)["result"] == [1]
        only_its_own(redis_db, job_id)
    assert "another worker has resumed" not in caplog.text


def test_a_cancel_while_it_is_settled_through_an_outage_ends_it_at_once(
    redis_db: RedisServer, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    async def cancelled_in_an_outage(settle: Call, renew: Call) -> Any:
        answer = await asyncio.to_thread(api.http.delete, f"/api/v1/jobs/{said[0]}")
        assert answer.json()["outcome"] == "asked"
        await renew()  # which tells of the cancel, if the publication has not
        raise BrokerUnavailable("away, as far as this settlement knows")

    with api_server(redis_db.url, catalog) as api:
        said.append(submit(api))
        with orchestrating(redis_db.url, catalog, monkeypatch, cancelled_in_an_outage):
            assert api.ended(said[0])["status"] == "cancelled"
            only_its_own(redis_db, said[0])
