"""Event streams where something dies: an API process, the worker, Redis; and whose they are."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import expect

from headrace.access.api_key import Scope
from headrace.config.model.catalog import load_catalog
from headrace.redis import keys
from headrace.server.recovery import release_incarnation
from tests.harness.clients.access import bearer, make_key, revoke_key
from tests.harness.deployments.pipelines import pipeline_site
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.http.browser import browser, browser_page
from tests.harness.http.events import reading
from tests.harness.servers.api_processes import api_processes
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models

MODELS: dict[str, Any] = {"m": {"handler": f"{HANDLERS / 'generation/speaking.py'}:Speaking"}}
#: Far longer than anything here waits: jobs of a worker that died go back as its supervisor says.
FIRST = {"HEADRACE_LEASE_TTL_S": "3600", "HEADRACE_INCARNATION": "first"}
PAGE = """
<!doctype html><ol></ol><script>
const source = new EventSource("/api/v1/jobs/JOB/events");
const say = (text) => {
  const line = document.createElement("li");
  line.textContent = text;
  document.querySelector("ol").append(line);
};
for (const name of ["queued", "running", "progress"])
  source.addEventListener(name, (event) => say(name));
source.addEventListener("ended", (event) => say(`ended: ${JSON.parse(event.data).status}`));
source.onerror = () => { if (source.readyState === EventSource.CLOSED) say("closed"); };
</script>
"""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """One whose data outlive it."""
    with redis_server("valkey9", "--appendonly", "yes", "--appendfsync", "always") as started:
        yield started


def said(*fractions: float, until: Path) -> dict[str, Any]:
    return {"says": [[fraction] for fraction in fractions], "until": str(until)}


def test_a_stream_outlives_api_process_worker_and_redis(
    server: RedisServer, tmp_path: Path
) -> None:
    models = write_models(tmp_path, **MODELS)
    with (
        Client(server.url, models) as client,
        api_processes(tmp_path / "one", server.url) as one,
        api_server(server.url, load_catalog(models)) as other,
    ):
        with celery_worker(server.url, models, tmp_path, environ=FIRST) as worker:
            worker.wait_ready("m")
            (job_id,) = client.submit("m", said(0.1, 0.2, 0.3, until=tmp_path))
            path = f"/api/v1/jobs/{job_id}/events"
            with reading(one.url + path) as first:
                first.wait_for("progress")
                for pid in (*one.pids(), one.process.pid):
                    os.kill(pid, signal.SIGKILL)
                first.wait_over()
            (tmp_path / "0").touch()
            with reading(other.url + path, first.last) as second:
                second.wait_for("progress")
                assert second.names == ["progress"]
                server.stop(kill=True)
                (tmp_path / "1").touch()
                server.start()
                # The stream has stood all the while, and what was said meanwhile is told.
                assert second.wait_for("progress", 2).data["progress"]["fraction"] == 0.3
                client.redis.sadd(keys.PAUSED, "headrace.m")
                worker.kill()
                assert release_incarnation(server.url, "first") == 1
                with celery_worker(server.url, models, tmp_path, node="again@test") as again:
                    again.wait_ready("m")
                    second.wait_for("queued")
                    client.redis.srem(keys.PAUSED, "headrace.m")
                    second.wait_for("running")
                    (tmp_path / "2").touch()
                    ended = second.wait_over()
        assert ended[-1].data["status"] == "succeeded"
        assert ended[-1].data["attempts"] == 2
        names = [name for name in second.names if name != "progress"]
        # What it waits for may change, from a worker to the end of the pause: it is told again.
        assert [name for name, _ in groupby(names)] == ["queued", "running", "ended"]
        assert len({event.id for event in (*first.events, *ended)}) == len(first.events) + len(
            ended
        )


def test_a_stream_is_its_keys_alone_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.routes.event_stream.HEARTBEAT_S", 0.2)
    with (
        redis_server() as server,
        api_server(server.url, catalog(echo={}), auth="on", event_streams_per_key=1) as api,
    ):
        key_id, key = make_key(server)
        stranger = bearer(make_key(server)[1])
        jobs = f"{api.url}/api/v1/models/echo/jobs"
        job_id = httpx2.post(jobs, json=1, headers=bearer(key), timeout=60).json()["id"]
        url = f"{api.url}/api/v1/jobs/{job_id}/events"
        assert httpx2.get(url, timeout=60).status_code == 401
        assert httpx2.get(url, headers=stranger, timeout=60).status_code == 404
        with reading(url, **bearer(key)) as reader:
            reader.wait_for("queued")
            refused = httpx2.get(url, headers=bearer(key), timeout=60)
            assert refused.status_code == 429
            assert key_id in refused.json()["detail"]
            revoke_key(server, key_id)
            assert reader.wait_over()[-1].name == "queued"
        assert httpx2.get(url, headers=bearer(key), timeout=60).status_code == 401


def test_a_stream_says_nothing_to_a_key_that_was_revoked() -> None:
    with redis_server() as server, api_server(server.url, catalog(echo={}), auth="on") as api:
        (key_id, key), (_, manager) = make_key(server), make_key(server, *Scope)
        job_id = httpx2.post(
            f"{api.url}/api/v1/models/echo/jobs", json=1, headers=bearer(key), timeout=60
        ).json()["id"]
        job = f"{api.url}/api/v1/jobs/{job_id}"
        with reading(f"{job}/events", **bearer(key)) as reader:
            reader.wait_for("queued")
            revoke_key(server, key_id)
            wait_until(
                lambda: httpx2.get(job, headers=bearer(key), timeout=60).status_code == 401,
                "the API has heard of it",
            )
            httpx2.delete(job, headers=bearer(manager), timeout=60).raise_for_status()
            # At once, as the job has ended, and not with the next heartbeat.
            assert [event.name for event in reader.wait_over()] == ["queued"]


def test_a_browsers_event_source_reads_it_resumes_and_stops(redis_db: RedisServer) -> None:
    with (
        api_server(redis_db.url, catalog(echo={}), event_stream_max_s=2) as api,
        redis_db.client() as client,
        browser() as chromium,
        browser_page(chromium) as watched,
    ):
        job_id = api.http.post("/api/v1/models/echo/jobs", json=1).json()["id"]
        page = watched.page
        page.route("**/page", lambda route: route.fulfill(
            body=PAGE.replace("JOB", job_id), content_type="text/html"))  # fmt: skip
        page.goto(f"{api.url}/page")
        lines = page.locator("li")
        expect(lines).to_have_text(["queued"], timeout=30_000)
        # Its time is over, and it comes back by itself: nothing is said twice.
        streams = f"{api.url}/api/v1/jobs/{job_id}/events"
        wait_until(lambda: _asked(page, watched.requests, streams) > 1, "it has come back")
        claimed = claim(client, "echo")
        settle(client, "echo", claimed, [Answer(result=b'"done"')])
        expect(lines).to_contain_text(
            ["queued", "running", "ended: succeeded", "closed"], timeout=30_000
        )
        assert lines.count() == 4


def _asked(page: Any, requests: list[str], url: str) -> int:
    page.wait_for_timeout(50)  # the browser's own loop, in which requests are seen
    return requests.count(url)


def test_a_pipelines_stages_are_its_progress(tmp_path: Path) -> None:
    stages = {"cut": {}, "weigh": {"model": "weigh", "each": "pieces[*]"}}
    with (
        redis_server() as server,
        pipeline_site(server, tmp_path, {"pieces": {"stages": stages}}) as site,
    ):
        site.background_worker()
        site.gate.touch()
        job_id = site.submit("pieces", {"pieces": 2, "size": 1})
        with reading(f"{site.api.url}/api/v1/jobs/{job_id}/events") as reader:
            progress = reader.wait_for("progress").data["progress"]
            assert progress["fraction"] == 0
            assert progress["message"] == "stage cut (1 of 2)"
            assert site.job(job_id)["progress"] == progress
            site.gate.unlink()
            reader.wait_over()
        assert reader.events[-1].data["status"] == "succeeded"
