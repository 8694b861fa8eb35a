"""The records of offline runs: saved, listed, cancelled; each belongs to its API key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import errors
from headrace.access.api_key import Caller
from headrace.client import Client
from headrace.client.admin import report_run
from headrace.client.sync_client import run_plan
from headrace.queue.job_queue import JobQueue
from headrace.redis import keys
from headrace.redis.connection import connect_async
from headrace.runs.records import SILENT_S, RunRecords
from headrace.schema.runs import RunStatus
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer


def report(client: Client, run_id: str, *, begun: bool = False, **status: Any) -> bool:
    return run_plan(
        client, report_run(client.session, run_id, {"model": "echo", **status}, begun=begun)
    )


def test_a_run_is_as_it_reported_last(api: ApiServer, redis_db: RedisServer) -> None:
    with Client(api.url) as client:
        assert client.runs() == []
        assert report(client, "run-a", begun=True, name="night", total=10, output="o") is False
        assert report(client, "run-b", succeeded=3, failed=1, state="ended") is False
        assert report(client, "run-a", succeeded=4, total=10, per_second=2.5) is False
        first, second = client.runs()
        assert (first.id, first.state, first.succeeded, first.total) == ("run-a", "running", 4, 10)
        assert (second.id, second.state, second.ended) == ("run-b", "ended", 4)
        assert client.run_record("run-b") == second
        with redis_db.client() as redis:
            at = int(redis.hget(keys.run("run-a"), "at") or 0)
            redis.hset(keys.run("run-a"), "at", at - (SILENT_S + 5) * 1_000_000)
            assert 0 < redis.ttl(keys.run("run-a")) <= 30 * 86_400
            assert 0 < redis.ttl(keys.RUNS) <= 30 * 86_400
        assert client.run_record("run-a").state == "lost"


def test_a_cancel_reaches_the_run_and_ends_when_it_starts_again(api: ApiServer) -> None:
    with Client(api.url) as client:
        report(client, "run-a", begun=True)
        assert client.cancel_run("run-a").cancel_requested
        assert report(client, "run-a") is True
        assert report(client, "run-a", state="cancelled") is True
        assert report(client, "run-a", begun=True) is False
        report(client, "run-a", state="ended")
        # A run that is not running is not cancelled, and not stopped when it runs again.
        assert not client.cancel_run("run-a").cancel_requested
        with pytest.raises(errors.RunNotFound, match="there is no run 'none'"):
            client.cancel_run("none")


@pytest.mark.parametrize(
    ("status", "words"),
    [({"nope": 1}, "nope"), ({"state": "lost"}, "state"), ({"total": -1}, "total")],
)
def test_what_is_no_record_is_refused(api: ApiServer, status: dict[str, Any], words: str) -> None:
    with Client(api.url) as client:
        with pytest.raises(errors.InvalidRequest, match=words):
            report(client, "run-a", **status)
        with pytest.raises(errors.PayloadTooLarge) as caught:
            report(client, "run-a", name="x" * 70_000)
        # The limit is the route's own, which no setting raises.
        assert "body_limit_bytes" not in caught.value.hint
        with pytest.raises(errors.InvalidId):
            report(client, "run a")
        assert client.runs() == []


def test_the_records_of_a_key_are_bounded_and_push_out_no_others(
    redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.runs.records.KEPT", 5)
    one, other = Caller("a", False), Caller("b", False)
    long = RunStatus(model="m" * 9999, source="s" * 9999, error="e" * 9999, command=["word"] * 5000)

    async def check() -> None:
        async with connect_async(redis_db.url) as redis:
            runs = RunRecords(JobQueue(redis))
            await runs.save_status("mine", RunStatus(model="echo"), one, begun=True)
            for number in range(12):
                await runs.save_status(f"his-{number}", long, other, begun=True)
            assert [record.id for record in await runs.all(one)] == ["mine"]
            newest = [f"his-{number}" for number in range(11, 6, -1)]
            assert [record.id for record in await runs.all(other)] == newest
            assert await redis.keys("hr:run:his-*") != []
            assert len(await redis.keys("hr:run:his-*")) == 5, "what is trimmed is deleted"
            kept = await runs.one("his-11", other)
            assert (len(kept.model), len(kept.error), kept.command) == (1024, 1024, [])
            used = await redis.memory_usage("hr:run:his-11")
            assert used is not None
            assert used < 8192

    asyncio.run(check())


def test_a_run_exists_for_its_own_key(redis_db: RedisServer) -> None:
    one, other, all_ = Caller("a", False), Caller("b", False), Caller("c", True)
    status = RunStatus(model="echo")

    async def check() -> None:
        async with connect_async(redis_db.url) as redis:
            records = RunRecords(JobQueue(redis))
            await records.save_status("run-a", status, one, begun=True)
            assert [record.id for record in await records.all(one)] == ["run-a"]
            assert [record.id for record in await records.all(all_)] == ["run-a"]
            assert await records.all(other) == []
            with pytest.raises(errors.RunNotFound):
                await records.cancel("run-a", other)
            with pytest.raises(errors.RunNotFound, match="not available to this API key"):
                await records.save_status("run-a", status, other, begun=False)

    asyncio.run(check())
