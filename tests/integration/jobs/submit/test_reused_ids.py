"""An id that another API key uses again: who still waits for the earlier job never sees the later.

The API's loop stands still while the earlier job ends and the later one runs, as it does on a busy
machine.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import redis

from api.submission.input_store import InputStore
from tests.harness.clients.access import http_as, make_key
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

JOBS = "/api/v1/jobs"


@dataclass
class Site:
    """Two keys, each with an API of its own over one Redis.

    Attributes:
        api: Alice's.
    """

    api: ApiServer
    alice: httpx2.Client
    bob: httpx2.Client
    redis: redis.Redis
    loop: asyncio.AbstractEventLoop

    def submit(self, http: httpx2.Client, value: Any, job_id: str = "order-7") -> None:
        made = http.put(f"{JOBS}/{job_id}", json={"model": "echo", "input": value})
        assert made.status_code == 202, made.text

    def end(self, text: bytes) -> None:
        """End the one job that waits, with this result."""
        (claimed,) = claim(self.redis, "echo")
        settle(self.redis, "echo", [claimed], [Answer(result=text)])

    def bob_takes_over(self) -> None:
        """Alice's job ends and is forgotten; Bob's takes its id and ends."""
        self.end(b'"hers"')
        self.redis.delete("hr:job:order-7", "celery-task-meta-order-7")
        self.submit(self.bob, "his")
        self.end(b'"his secret"')

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Alice's API does nothing meanwhile."""
        stands, gate = threading.Event(), threading.Event()

        def stand() -> None:
            stands.set()
            gate.wait(60)

        self.loop.call_soon_threadsafe(stand)
        assert stands.wait(60)
        try:
            yield
        finally:
            gate.set()


@pytest.fixture
def site(redis_db: RedisServer) -> Iterator[Site]:
    with (
        api_server(redis_db.url, catalog(echo={}), auth="on") as one,
        api_server(redis_db.url, catalog(echo={}), auth="on") as other,
        http_as(one, make_key(redis_db)[1]) as alice,
        http_as(other, make_key(redis_db)[1]) as bob,
        redis_db.client() as client,
    ):
        # The loop is known once a request has waited.
        alice.put(f"{JOBS}/first", json={"model": "echo", "input": 1}, params={"wait": "0.001"})
        site = Site(one, alice, bob, client, one.services.pending_waits.loop)
        site.end(b"1")
        yield site


@pytest.fixture
def later() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


def test_a_wait_for_the_earlier_job(site: Site, later: Callable[..., Future[Any]]) -> None:
    site.submit(site.alice, "hers")
    answer = later(site.alice.get, f"{JOBS}/order-7", params={"wait": "20"})
    channel = b"hr:ended:order-7"
    wait_until(lambda: channel in site.redis.pubsub_channels("hr:ended:*"), "it waits", 60)
    with site.standing_still():
        site.bob_takes_over()
    assert "his" not in answer.result(60).text
    # It may have read the record, which is another job's by then.
    assert answer.result().status_code == 404 or answer.result().json()["result"] == "hers"


def test_a_wait_whose_publications_were_lost(site: Site, later: Callable[..., Future[Any]]) -> None:
    """It reads the record again."""
    site.submit(site.alice, "hers")
    answer = later(site.alice.get, f"{JOBS}/order-7", params={"wait": "20"})
    channel = b"hr:ended:order-7"
    wait_until(lambda: channel in site.redis.pubsub_channels("hr:ended:*"), "it waits", 60)
    with site.standing_still():
        site.redis.client_kill_filter(_type="pubsub")
        site.bob_takes_over()
    assert answer.result(60).status_code == 404
    assert "his" not in answer.result().text


def test_a_submit_that_waits(
    site: Site, later: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bob's job has the id first, and ends while Alice's input is being stored."""
    keep, begun, gate = InputStore.keep, threading.Event(), asyncio.Event()

    async def slow(self: InputStore, request: Any) -> Any:
        begun.set()
        await gate.wait()
        return await keep(self, request)

    site.submit(site.bob, "his")
    # What ends is published to whoever waits for it: here to Alice's process, as Bob uses it too.
    site.redis.hset("hr:job:order-7", "w", site.api.services.waiters.api_id)
    monkeypatch.setattr(InputStore, "keep", slow)
    body = {"model": "echo", "input": "x" * 20_000}
    answer = later(site.alice.put, f"{JOBS}/order-7", json=body, params={"wait": "20"})
    assert begun.wait(60)
    site.end(b'"his secret"')
    site.redis.delete("hr:job:order-7", "celery-task-meta-order-7")
    site.loop.call_soon_threadsafe(gate.set)
    wait_until(lambda: site.redis.llen("headrace.echo") == 1, "hers is queued", 60)
    site.end(b'"hers"')
    assert answer.result(60).json()["result"] == "hers"
    site.redis.flushall()  # the fake worker leaves the input


def test_an_event_stream_of_the_earlier_job(site: Site) -> None:
    site.submit(site.alice, "hers")
    with site.alice.stream("GET", f"{JOBS}/order-7/events") as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event:")) == "event: queued"
        with site.standing_still():
            site.bob_takes_over()
        rest = list(lines)
    assert "his" not in json.dumps(rest)
    assert "event: ended" not in rest
    assert site.alice.get(f"{JOBS}/order-7/events").status_code == 404
