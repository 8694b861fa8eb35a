"""Time series on a real deployment: written once, read back, and whole after kills."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import AsyncClient
from headrace import Client as Sdk
from headrace.config.model.catalog import load_catalog
from headrace.observability import series
from headrace.observability.worker_report import ADMITTED
from headrace.redis import keys
from tests.harness.servers.api_server import ApiServer, registry_server
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Worker, celery_worker, write_models
from workers.background.series import SeriesWriter

#: How long a minute is, where it need not be one.
MINUTE_S = 0.5


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_models(tmp_path, echo={"handler": "echo"}, gone={"handler": "echo"})


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server("valkey9", "--appendonly", "yes", "--appendfsync", "always") as made:
        yield made


def newest_minute(client: redis.Redis) -> int:
    """The newest minute that is over for good, since 1970."""
    seconds: Any = client.time()
    return int(seconds[0] - 10) // 60 - 1


def test_minutes_and_hours_of_jobs_that_ran(
    server: RedisServer, models: Path, tmp_path: Path
) -> None:
    with (
        registry_server(server.url, models) as api,
        celery_worker(server.url, models, tmp_path) as worker,
        server.client() as client,
    ):
        worker.wait_ready("echo", "gone")
        catalog = load_catalog(models)
        writer, other = SeriesWriter(server.url, catalog), SeriesWriter(server.url, catalog)
        newest = newest_minute(client)
        assert writer.write(newest - 2) == 2
        for n in range(20):
            assert api.http.post("/api/v1/models/echo/jobs?wait=60", json=n).json()["result"] == n

        def counted() -> bool:
            fields = client.hmget(keys.stats("echo"), ADMITTED, series.FIELDS[4])
            return fields[0] == b"20" and b" 20 " in (fields[1] or b"")

        wait_until(counted, "the API and the worker have counted them")
        # Another one finds that they are written.
        assert (writer.write(newest - 1), other.write(newest - 1)) == (2, 0)
        assert other.write(newest) == 2
        assert client.strlen(keys.series("echo")) == series.SIZE
        assert (client.memory_usage(keys.series("echo")) or 0) < 100_000

        with Sdk(api.url) as sdk:
            hour = sdk.series("echo")
            assert (hour.until - hour.since).total_seconds() == 3600
            day = sdk.series("echo", since=time.time() - 86_000, step="minute")
            assert len(day.series.failed) > 1400
            days = sdk.series("echo", since=(newest - 5 * 1440) * 60, until=(newest + 60) * 60)
            overview = sdk.overview()
            assert sdk.findings() == overview.findings
        assert day.series.submitted[-len(hour.series.submitted) :] == hour.series.submitted
        at = newest - int(hour.since.timestamp()) // 60
        columns = hour.series
        assert columns.submitted[at - 3 : at + 1] == [None, None, 20, 0]
        assert columns.succeeded[at - 1 : at + 1] == [20, 0]
        assert columns.failed[at - 1] == 0
        assert columns.ready_replicas[at - 2 : at + 1] == [1, 1, 1]
        assert columns.batch_size[at - 1 : at + 1] == [1.0, None]
        assert (columns.p99_ms[at - 1] or 0) >= (columns.p50_ms[at - 1] or 0) > 0
        assert days.step_s == 3600
        assert sum(count or 0 for count in days.series.submitted) in (0, 20)

        every = api.http.get("/api/v1/series")
        assert every.json()["models"]["echo"]["submitted"][-60:].count(20) == 1
        again = api.http.get("/api/v1/series", headers={"if-none-match": every.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        most = api.http.get("/api/v1/models/echo/series?since=1&step=minute").json()
        assert len(most["series"]["failed"]) == 1440

        # A writer that has read before the removal writes after it.
        assert api.http.delete("/api/v1/models/gone").status_code == 204
        assert not client.exists(keys.series("gone"))
        assert writer.write(newest + 1) == 1
        assert not client.exists(keys.series("gone"))


def test_the_async_client_reads_them_too(api: ApiServer) -> None:
    async def read() -> None:
        async with AsyncClient(api.url) as client:
            one = await client.series("tiny", since=0, until=7200, step="hour")
            assert (one.model, one.step_s, one.series.depth) == ("tiny", 3600, [None, None])
            assert "no-worker" in [finding.code for finding in await client.findings()]
            assert [model.name for model in (await client.overview()).models] == ["echo", "tiny"]

    asyncio.run(read())


def test_kills_leave_gaps_and_no_wrong_numbers(
    server: RedisServer, models: Path, tmp_path: Path
) -> None:
    first, jobs, seen = int(time.time() / MINUTE_S), 0, dict[int, int | None]()
    with ExitStack() as stack, server.client() as client:

        def background(owner: str) -> Worker:
            worker: Worker = stack.enter_context(
                celery_worker(
                    server.url, models, tmp_path, node=f"{owner}@test",
                    app="tests.harness.workers.quick_series",
                    environ={"HEADRACE_INCARNATION": owner, "TEST_MINUTE_S": str(MINUTE_S)},
                    arguments=(),
                )
            )  # fmt: skip
            return worker

        def known() -> int:
            """Count a job, and how many minutes are known by now."""
            nonlocal jobs
            client.hincrby(keys.stats("echo"), ADMITTED, 1)
            jobs += 1
            end = int(time.time() / MINUTE_S)
            reads = series.reads("echo", series.MINUTE, first, end)
            replies: list[Any] = [client.execute_command(*read) for read in reads]
            for at, bucket in enumerate(series.buckets(replies, first, end)):
                if bucket != series.UNKNOWN:
                    # What is written once stays.
                    assert seen.setdefault(first + at, bucket.submitted) == bucket.submitted
            return sum(count is not None for count in seen.values())

        def more(about: str) -> None:
            now = known()
            wait_until(lambda: known() > now + 2, f"minutes are written {about}", 60)

        client.hset(keys.stats("echo"), ADMITTED, 1000)
        one, two = background("one"), background("two")
        more("by two at once")
        one.kill()
        more("by the other")
        two.kill()
        missed = int(time.time() / MINUTE_S)
        wait_until(lambda: known() and time.time() / MINUTE_S > missed + 4, "nobody writes")
        three = background("three")
        more("by a third")
        server.stop(kill=True)
        server.start()
        more("after Redis was killed")
        # The counters begin anew.
        client.hset(keys.stats("echo"), ADMITTED, 0)
        more("of the new counters")
        three.kill()
    counts = [count for count in seen.values() if count is not None]
    assert min(counts) >= 0
    assert 0 < sum(counts) <= jobs
    assert any(minute not in seen for minute in range(missed, missed + 4)), "a gap stays a gap"
