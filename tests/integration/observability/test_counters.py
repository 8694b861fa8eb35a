"""What an API process counts reaches Redis, whatever Redis does meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.observability import counters
from headrace.redis import connection, fast_connection, keys
from tests.harness.http.plain_http import PLAIN
from tests.harness.processes.processes import suspend
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until

ECHO_JOBS = "/api/v1/models/echo/jobs"
UNAVAILABLE = ("headrace_jobs_rejected_total", "broker-unavailable")
FULL = ("headrace_jobs_rejected_total", "queue-full")


def counts(api: ApiServer) -> dict[tuple[str, str], float]:
    """The samples of `echo`, by name and reason."""
    families = text_string_to_metric_families(api.http.get("/metrics").text)
    return {
        (sample.name, sample.labels.get("reason", "")): sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("model") == "echo"
    }


def names(api: ApiServer) -> set[str]:
    families = text_string_to_metric_families(api.http.get("/metrics").text)
    return {sample.name for family in families for sample in family.samples}


def test_counts_of_an_outage_are_reported_after_it() -> None:
    with redis_server() as server, api_server(server.url, catalog(echo={})) as api:
        assert counts(api)[FULL] == 0
        server.stop()
        for _ in range(3):
            assert api.http.post(ECHO_JOBS, json=1).status_code == 503
        assert names(api) == {"headrace_broker_up", "headrace_build_info"}
        server.start()
        wait_until(lambda: counts(api).get(UNAVAILABLE) == 3, "the refusals of the outage", 30)


def test_counts_that_redis_refuses_are_reported_later(
    api: ApiServer, redis_db: RedisServer
) -> None:
    with redis_db.client() as client:
        client.set(keys.stats("tiny"), "of another type", ex=60)
        for model in ("tiny", "echo"):
            path = f"/api/v1/models/{model}/jobs?priority=x"
            assert api.http.post(path, json=1).status_code == 400
        # A scrape reports too, and its own replies come after the refused ones.
        assert counts(api)["headrace_jobs_rejected_total", "invalid-request"] == 1
        client.delete(keys.stats("tiny"))
        wait_until(lambda: client.hget(keys.stats("tiny"), "rejected:invalid-request"), "tiny's")
        rejected = {
            m: client.hget(keys.stats(m), "rejected:invalid-request") for m in ("echo", "tiny")
        }
    assert rejected == {"echo": b"1", "tiny": b"1"}


def test_a_stop_reports_the_rest(redis_db: RedisServer) -> None:
    with redis_db.client() as client:
        with api_server(redis_db.url, catalog(echo={})) as api:
            for _ in range(5):
                httpx2.post(f"{api.url}{ECHO_JOBS}?priority=x", json=1, timeout=60, verify=PLAIN)
        assert client.hget(keys.stats("echo"), "rejected:invalid-request") == b"5"


def test_scrapes_that_stand_behind_one_another_fail_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scrapes, sent, free = 4, [], threading.Event()

    async def late(client: Any, commands: bytes, count: int) -> list[Any]:
        """Sent once all of them have come, so that none is only late."""
        sent.append(count)
        for _ in range(3000):
            if (
                free.is_set()
                and len(api.services.counter_reporter._lock._waiters or ()) >= scrapes - 1
            ):
                break
            await asyncio.sleep(0.01)
        return await fast_connection.exchange(client, commands, count)

    monkeypatch.setattr(connection, "SOCKET_TIMEOUT_S", 1.0)
    with (
        redis_server() as server,
        api_server(server.url, catalog(echo={})) as api,
        ThreadPoolExecutor(scrapes) as pool,
    ):
        assert "headrace_queue_depth" in names(api)
        with server.client() as client:
            pid = int(client.info("server")["process_id"])
        suspend(pid)
        try:
            monkeypatch.setattr(counters, "exchange", late)
            scraping = [pool.submit(names, api) for _ in range(scrapes)]
            wait_until(lambda: sent, "the first report is sent")
            # Other requests are answered meanwhile.
            assert httpx2.get(f"{api.url}/live", timeout=60, verify=PLAIN).status_code == 200
            assert not any(one.done() for one in scraping)
            free.set()
            for one in scraping:
                assert one.result(60) == {"headrace_broker_up", "headrace_build_info"}
            assert len([count for count in sent if count > 5]) <= 1
        finally:
            monkeypatch.undo()
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: "headrace_queue_depth" in names(api), "Redis answers again", 30)
