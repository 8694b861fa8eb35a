"""Which jobs run, and since when: real API, worker and Redis, inputs that wait for a file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.config.model.catalog import load_catalog
from headrace.redis import keys
from tests.harness.clients.celery_client import send, stock_client
from tests.harness.deployments import site as sites
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.http.events import reading
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models

GATED = {"handler": f"{HANDLERS / 'gated.py'}:Gated", "max_batch_size": 4}
BEFORE = ("queued", "hold", "device_wait")
STAGES = ("preprocess", "inference", "postprocess")


class Site(sites.Site):
    """A site, with the statuses of its jobs."""

    def listed(self, status: str, model: str = "m") -> set[str]:
        query = {"model": model, "status": status}
        return {job["id"] for job in self.api.http.get("/api/v1/jobs", params=query).json()["jobs"]}

    def status(self, *ids: str) -> list[str]:
        found = self.api.http.post("/api/v1/jobs/outcomes", json={"ids": ids}).json()["outcomes"]
        return [outcome["status"] for outcome in found]

    def runs(self, job_id: str) -> dict[str, Any]:
        """Wait until a job is shown as running; how it is shown then."""
        wait_until(lambda: self.shown(job_id)["status"] == "running", "it runs")
        return self.shown(job_id)


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("started")
    retried = {**GATED, "max_retries": 100, "retry_backoff_s": 600.0, "retry_backoff_max_s": 600.0}
    with shared_deployment.site(folder, {"m": GATED, "retried": retried}) as found:
        yield Site(**vars(found))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def ms(job: dict[str, Any], names: tuple[str, ...]) -> timedelta:
    return timedelta(milliseconds=sum(job["timings"][name] for name in names))


def adds_up(job: dict[str, Any]) -> bool:
    """Whether its timings lead from its submit to its start, and from there not past its end."""
    started = at(job["started_at"])
    before = abs(at(job["created_at"]) + ms(job, BEFORE) - started)
    return before < timedelta(microseconds=50) and started + ms(job, STAGES) <= at(
        job["finished_at"]
    )


def test_what_waits_in_the_worker_is_queued_and_waits_for_the_device(
    site: Site, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    site.api.http.post("/api/v1/queues/headrace.m/pause").raise_for_status()
    value = {"until": str(gate)}
    path = "/api/v1/models/m/jobs"
    ids = [site.api.http.post(path, json=value).json()["id"] for _ in range(6)]
    site.api.http.post("/api/v1/queues/headrace.m/resume").raise_for_status()
    wait_until(lambda: site.client.leased(*ids), "the worker has all of them")
    for job_id in ids[:4]:
        assert site.runs(job_id)["attempts"] == 1
    for job_id in ids[4:]:
        job = site.shown(job_id)
        assert (job["status"], job["attempts"], job["started_at"]) == ("queued", 0, None)
        assert (job["queue_position"], job["waiting_for"]) == (1, None)
    assert (site.listed("running"), site.listed("queued")) == (set(ids[:4]), set(ids[4:]))
    assert site.status(*ids) == ["running"] * 4 + ["queued"] * 2
    with reading(f"{site.api.url}/api/v1/jobs/{ids[5]}/events") as reader:
        assert reader.wait_for("queued").data["attempts"] == 0
        began = [site.shown(job_id)["started_at"] for job_id in ids]
        gate.touch()
        reader.wait_over()
        assert reader.names[-2:] == ["running", "ended"]
    jobs = [site.shown(job_id) for job_id in ids]
    assert [job["started_at"] for job in jobs][:4] == began[:4], "as it was told"
    assert all(map(adds_up, jobs)), [job["timings"] for job in jobs]
    for job in jobs[4:]:
        timings = job["timings"]
        assert timings["device_wait"] > 0 == timings["hold"]
        assert at(job["started_at"]) > at(jobs[0]["started_at"])


def test_a_short_job_has_its_exact_start(site: Site) -> None:
    job = site.api.http.post("/api/v1/models/m/jobs?wait=30", json=1).json()
    assert (job["status"], job["attempts"]) == ("succeeded", 1)
    assert adds_up(job), job
    assert site.shown(job["id"]) == job


def test_a_start_that_an_outage_has_lost_is_written_again(site: Site, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    (job_id,) = site.client.submit("m", {"until": str(gate)})
    began = site.runs(job_id)["started_at"]
    site.client.redis.hdel(keys.job(job_id), "st")
    assert site.shown(job_id)["status"] == "queued"
    site.client.redis.client_kill_filter(_type="normal", skipme=True)
    assert site.runs(job_id)["started_at"] == began
    gate.touch()
    site.client.wait(job_id)


def test_a_cancel_while_it_waits_for_a_retry_tells_no_start_twice(site: Site) -> None:
    (job_id,) = site.client.submit("retried", {"do": "transient"})
    events = f"{site.api.url}/api/v1/jobs/{job_id}/events"
    with reading(events) as reader:
        reader.wait_for("scheduled")
        waiting = site.shown(job_id)
        assert (waiting["status"], waiting["attempts"]) == ("scheduled", 1)
        assert waiting["started_at"], "of its last attempt"
        last = reader.last
        site.api.http.delete(f"/api/v1/jobs/{job_id}").raise_for_status()
        reader.wait_over()
    assert [name for name in reader.names if name == "running"] in ([], ["running"])
    assert reader.names[-2:] == ["scheduled", "ended"]
    with reading(events, last) as again:
        again.wait_over()
        assert again.names == ["ended"]
    cancelled = site.shown(job_id)
    assert (cancelled["status"], cancelled["attempts"]) == ("cancelled", 1)
    assert cancelled["started_at"] == waiting["started_at"]


@pytest.mark.parametrize("do", ["exit", "segfault"])
def test_a_job_that_ends_with_its_process_has_its_start_however_short(
    redis_db: RedisServer, tmp_path: Path, do: str
) -> None:
    path = write_models(tmp_path, m=GATED)
    environ = {"HEADRACE_MAX_DELIVERIES": "1"}
    with (
        celery_worker(redis_db.url, path, tmp_path, environ=environ) as worker,
        api_server(redis_db.url, load_catalog(path)) as api,
        Client(redis_db.url, path) as client,
    ):
        worker.wait_ready("m")
        (job_id,) = client.submit("m", {"do": do})
        client.wait(job_id)
        job = Site(redis_db, api, worker, client, tmp_path).shown(job_id)
        assert (job["status"], job["error"]["type"]) == ("failed", "replica-lost"), job
        assert job["started_at"] is not None
        assert adds_up(job), job


def test_a_countdown_is_no_start(site: Site) -> None:
    with stock_client(site.redis.url) as app:
        sent = send(app, "m", 1, countdown=3600)
        assert sent.id is not None
        wait_until(
            lambda: site.shown(sent.id).get("status") == "scheduled", "a worker has put it off"
        )
        job = site.shown(sent.id)
        assert (job["attempts"], job["started_at"]) == (0, None)
        site.api.http.delete(f"/api/v1/jobs/{sent.id}").raise_for_status()
        assert site.shown(sent.id)["started_at"] is None


def test_a_worker_that_is_killed_leaves_what_waited_in_it_queued(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    environ = {"HEADRACE_LEASE_TTL_S": "1"}
    path = write_models(tmp_path, m={**GATED, "max_batch_size": 1})
    with Client(redis_db.url, path) as client, api_server(redis_db.url, load_catalog(path)) as api:
        with celery_worker(redis_db.url, path, tmp_path, node="a@test", environ=environ) as worker:
            worker.wait_ready("m")
            site = Site(redis_db, api, worker, client, tmp_path)
            runs, waits = client.submit("m", {"until": str(gate)}, 7)
            site.runs(runs)
            wait_until(lambda: client.leased(waits), "it is in the worker")
            assert site.shown(waits)["status"] == "queued"
            worker.kill()
            assert site.shown(waits)["started_at"] is None
        gate.touch()
        with celery_worker(redis_db.url, path, tmp_path, node="b@test", environ=environ) as second:
            second.wait_ready("m")
            jobs = client.wait(runs, waits)
        assert [job.state.status for job in jobs] == ["succeeded"] * 2
        assert all(adds_up(site.shown(job_id)) for job_id in (runs, waits))
