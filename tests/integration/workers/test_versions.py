"""Two workers with two versions of a model on one Redis: a job runs on the version it asks for."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import headrace
from headrace.config.model.catalog import load_catalog
from headrace.errors import ModelNotFound
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.clients.celery_client import GET_TIMEOUT_S, send, stock_client
from tests.harness.clients.doctor import found, verdict
from tests.harness.processes.processes import suspend
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.servers.up import headrace as command
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

WORDS = "words"
OLD, NEW = "1.0", "2.0"
LEASE_TTL_S = "5"


def queue_of(version: str = "") -> str:
    return keys.version_queue(WORDS, version) if version else keys.queue_name(WORDS)


@dataclass
class Site:
    """Both workers, an API whose models file declares the old version, and all clients."""

    url: str
    folder: Path
    api: ApiServer
    ours: Client
    sdk: headrace.Client
    app: Celery
    workers: dict[str, Worker] = field(default_factory=dict)

    @property
    def models(self) -> Path:
        return self.folder / OLD / "models.yaml"

    @contextmanager
    def worker(self, version: str) -> Iterator[Worker]:
        folder = self.folder / version
        environ = {"HEADRACE_LEASE_TTL_S": LEASE_TTL_S}
        node = f"cpu0@v{version[0]}"
        with celery_worker(
            self.url, folder / "models.yaml", folder, node=node, environ=environ
        ) as worker:
            worker.wait_ready(WORDS)
            yield worker

    def submit(self, value: Any, version: str = "", **options: Any) -> str:
        asked = {"version": version} if version else {}
        answer = self.api.http.post(
            "/api/v1/jobs", json={"model": WORDS, "input": value, **asked, "options": options}
        )
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    def bulk(self, value: Any, version: str = "") -> str:
        (job_id,) = self.submit_many([value], version)
        return job_id

    def submit_many(self, values: list[Any], version: str = "", **options: Any) -> list[str]:
        """Submit in one request."""
        asked = {"version": version} if version else {}
        lines = [
            json.dumps({"model": WORDS, "input": value, **asked, "options": options})
            for value in values
        ]
        answer = self.api.http.post(
            "/api/v1/jobs/bulk?quiet=1",
            content="\n".join(lines),
            headers={"content-type": "application/x-ndjson"},
        )
        return [json.loads(line)["id"] for line in answer.text.splitlines()]

    def celery(self, value: Any, version: str = "", *, header: bool = False) -> str:
        options: dict[str, Any] = {}
        if version and header:
            options["headers"] = {"headrace": {"version": version}}
        elif version:
            options["queue"] = queue_of(version)
        return str(send(self.app, WORDS, value, **options).id)

    def job(self, job_id: str) -> dict[str, Any]:
        return self.api.job(job_id)

    def ran_on(self, job_id: str, timeout_s: float = 60) -> str:
        """The version that ran a job, as its handler, its record and the job object say."""
        (job,) = self.ours.wait(job_id, timeout_s=timeout_s)
        assert job.state.status == "succeeded", job
        version: str = self.ours.result(job_id)["version"]
        assert self.job(job_id)["version"] == version
        return version

    def swept(self, version: str) -> None:
        """Wait until a worker has looked at its queues: it reports after each look."""

        seen: set[str] = set()

        def reported_twice() -> bool:
            workers = self.api.http.get("/api/v1/workers").json()["workers"]
            seen.update(w["reported_at"] for w in workers if w["pid"] == self.workers[version].pid)
            return len(seen) > 2

        wait_until(reported_twice, "it has looked", 60)

    def waiting(self, version: str = "") -> int:
        return int(self.ours.redis.llen(queue_of(version)))

    def paused(self, queue: str, verb: str = "pause") -> None:
        assert self.api.http.post(f"/api/v1/queues/{queue}/{verb}").status_code == 200

    def run(self, *arguments: str) -> str:
        done = command(*arguments, "--url", self.api.url, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site without its workers."""
    folder = tmp_path_factory.mktemp("versions")
    for version in (OLD, NEW):
        (folder / version).mkdir()
        write_models(
            folder / version,
            **{
                WORDS: {
                    "handler": f"{HANDLERS / 'versioned.py'}:Versioned",
                    "version": version,
                    "max_batch_size": 4,
                    "max_retries": 1,
                    "retry_backoff_s": 0.01,
                    "retry_backoff_max_s": 0.01,
                }
            },
        )
    models = load_catalog(folder / OLD / "models.yaml")
    with (
        redis_server() as server,
        api_server(server.url, models) as api,
        Client(server.url, folder / OLD / "models.yaml") as ours,
        headrace.Client(api.url) as sdk,
        stock_client(server.url) as app,
    ):
        yield Site(server.url, folder, api, ours, sdk, app)
        nothing_leaks(ours.redis)


@pytest.fixture(scope="module")
def _both(place: Site) -> Iterator[Site]:
    with ExitStack() as stack:
        for version in (OLD, NEW):
            place.workers[version] = stack.enter_context(place.worker(version))
        yield place


@pytest.fixture
def site(_both: Site) -> Iterator[Site]:
    yield _both
    for version in ("", OLD, NEW):
        _both.paused(queue_of(version), "resume")


def test_each_job_runs_on_the_version_that_it_asks_for(site: Site) -> None:
    """40 jobs of every kind of client, mixed."""
    asked: dict[str, str] = {}
    free: list[str] = []
    in_own_queue: list[str] = []
    for n in range(4):
        for version in (OLD, NEW):
            asked[site.submit({"n": n}, version)] = version
            asked[site.bulk({"n": n}, version)] = version
            asked[site.sdk.submit(WORDS, {"n": n}, version=version).id] = version
            asked[site.celery({"n": n}, version)] = version
            asked[own := site.celery({"n": n}, version, header=True)] = version
            in_own_queue.append(own)
        free += [site.submit({"n": n}), site.celery({"n": n})]
    wrong = {
        job_id: ran for job_id, version in asked.items() if (ran := site.ran_on(job_id)) != version
    }
    assert not wrong
    assert {site.ran_on(job_id) for job_id in free} <= {OLD, NEW}
    for job_id, version in asked.items():
        # A worker of the right version runs it from the model's own queue.
        shown = site.job(job_id).get("requested_version", version if job_id in in_own_queue else "")
        assert shown == version
    assert all("requested_version" not in site.job(job_id) for job_id in free)
    listed = site.api.http.get("/api/v1/jobs", params={"model": WORDS, "limit": 100}).json()["jobs"]
    assert {job["id"] for job in listed} >= {*asked, *free} - {
        j for j in asked if site.ours.job(j).quiet
    }


def test_one_that_waits_is_answered_with_the_version_that_ran(site: Site) -> None:
    for version in (OLD, NEW):
        body = {"model": WORDS, "input": {}, "version": version}
        job = site.api.http.post("/api/v1/jobs?wait=30", json=body).json()
        assert (job["status"], job["version"]) == ("succeeded", version)
    site.paused(queue_of())  # for all versions
    free = site.submit({})
    suspend(site.workers[OLD].pid)
    try:
        site.paused(queue_of(), "resume")
        job = site.api.http.get(f"/api/v1/jobs/{free}?wait=30").json()
    finally:
        site.workers[OLD].send(signal.SIGCONT)
    assert (job["status"], job["version"]) == ("succeeded", NEW), "the API declares the old one"


def test_unknown_versions_are_refused_and_known_ones_named(site: Site) -> None:
    answer = site.api.http.post("/api/v1/jobs", json={"model": WORDS, "input": {}, "version": "3"})
    assert answer.status_code == 404
    assert f"{OLD}, {NEW}" in answer.text
    with pytest.raises(ModelNotFound):
        site.sdk.submit(WORDS, {}, version="3")


def test_what_shows_a_model_shows_its_versions(site: Site) -> None:
    model = site.api.http.get(f"/api/v1/models/{WORDS}").json()
    assert model["versions"] == [OLD, NEW]
    assert {worker["version"] for worker in model["workers"]} == {OLD, NEW}
    assert f"cpu0@v2, version {NEW}" in site.run("models", WORDS)
    assert f"{OLD}, {NEW}" in site.run("models")


def test_queues_are_counted_paused_and_purged_together_and_alone(site: Site) -> None:
    site.paused(queue_of(NEW))
    jobs = [site.submit({}, NEW) for _ in range(3)]
    assert site.ran_on(site.submit({}, OLD)) == OLD, "only the queue of the other version is paused"
    (queue,) = site.api.http.get("/api/v1/queues").json()["queues"]
    own = next(one for one in queue["versions"] if one["version"] == NEW)
    assert (queue["depth"]["0"], own["depth"]["0"], own["paused"], queue["paused"]) == (
        3,
        3,
        True,
        False,
    )
    metrics = site.api.http.get("/metrics").text
    assert f'headrace_queue_depth{{model="{WORDS}",priority="0",version="{OLD}"}} 3' in metrics
    table = site.run("queues")
    assert f"{queue_of(NEW)} " in table
    assert [site.job(job)["queue_position"] for job in jobs] == [1, 2, 3]
    assert "3 cancelled" in site.run("queues", "purge", WORDS, "--yes")
    assert {site.job(job)["status"] for job in jobs} == {"cancelled"}
    site.paused(queue_of(NEW), "resume")
    site.paused(queue_of())
    waiting = [site.submit({}, version) for version in ("", OLD, NEW)]
    assert "1 cancelled" in site.run("queues", "purge", f"{WORDS}@{NEW}", "--yes")
    assert [site.job(job)["status"] for job in waiting] == ["queued", "queued", "cancelled"]
    site.paused(queue_of(), "resume")
    assert site.ran_on(waiting[1]) == OLD


def test_a_job_of_a_version_is_cancelled_expires_is_retried_and_waits(site: Site) -> None:
    site.paused(queue_of(NEW))
    cancelled, expired = site.submit({}, NEW), site.submit({}, NEW, expires=0.05)
    assert site.api.http.delete(f"/api/v1/jobs/{cancelled}").status_code == 200
    (ended,) = site.ours.wait(expired)
    assert ended.state.status == "expired"
    assert site.job(cancelled)["status"] == "cancelled"
    site.paused(queue_of(NEW), "resume")
    gate = site.folder / "gate"
    later = site.submit({}, NEW, countdown=0.2)
    assert site.job(later)["status"] in ("scheduled", "queued", "running", "succeeded")
    assert site.ran_on(later) == NEW
    failing = {"do": "transient", "until": str(gate)}
    retried = site.submit(failing, NEW, max_retries=100, retry_backoff=0.05, retry_backoff_max=0.05)
    wait_until(lambda: site.ours.job(retried).attempts > 2, "it is retried")
    gate.touch()
    assert site.ran_on(retried) == NEW
    running = site.submit({"hold": str(site.folder / "held")}, NEW)
    wait_until(lambda: site.job(running)["status"] == "running", "it runs")
    assert site.api.http.delete(f"/api/v1/jobs/{running}").json()["outcome"] == "asked"
    (site.folder / "held").touch()
    (job,) = site.ours.wait(running)
    assert job.state.status == "cancelled"


def test_a_dead_letter_runs_on_its_version_again(site: Site) -> None:
    gate = site.folder / "dead"
    job_id = site.submit({"do": "transient", "until": str(gate)}, NEW)
    (job,) = site.ours.wait(job_id)
    assert job.dead_lettered
    letters = site.api.http.get(f"/api/v1/models/{WORDS}/dead-letters").json()["dead_letters"]
    assert [letter["id"] for letter in letters] == [job_id]
    assert site.api.http.get(f"/api/v1/models/{WORDS}/dead-letters/{job_id}").status_code == 200
    assert site.api.http.get("/api/v1/queues").json()["queues"][0]["dead_letters"] == 1
    gate.touch()
    path = f"/api/v1/models/{WORDS}/dead-letters/requeue"
    assert site.api.http.post(path, json={"ids": [job_id]}).json() == {"requeued": 1, "left": {}}
    assert site.ran_on(job_id) == NEW


def test_a_stock_client_may_name_a_version_with_a_countdown(site: Site) -> None:
    """The job waits in the model's own queue, and is moved when its time has come."""
    options: dict[str, Any] = {"headers": {"headrace": {"version": NEW}}, "countdown": 1}
    with site_alone(site, OLD):
        sent = [send(site.app, WORDS, {"n": n}, **options) for n in range(8)]
        wait_until(lambda: site.waiting(NEW) == len(sent), "they are moved")
        assert site.job(sent[0].id)["waiting_for"] is None, "the other worker is only suspended"
    assert {result.get(timeout=GET_TIMEOUT_S)["version"] for result in sent} == {NEW}
    record = site.ours.redis.hgetall(keys.job(sent[0].id))
    assert record[JobField.ASKED_VERSION.encode()] == NEW.encode()
    assert record[JobField.ATTEMPTS.encode()] == b"1", "neither wait nor move counts"
    wrong = send(site.app, WORDS, {}, headers={"headrace": {"version": "2 0"}})
    with pytest.raises(Exception, match="cannot be read"):
        wrong.get(timeout=GET_TIMEOUT_S)


def test_priorities_hold_across_both_queues_and_neither_starves_the_other(site: Site) -> None:
    gate = site.folder / "busy"
    with site_alone(site, NEW):
        busy = site.submit({"hold": str(gate)}, NEW)
        wait_until(lambda: site.job(busy)["status"] == "running", "the model is busy")
        inputs = [{"n": n} for n in range(16)]
        jobs = {
            "free": site.submit_many(inputs),
            "asked": site.submit_many(inputs, NEW),
            "offline": site.submit_many(inputs[:4], NEW, priority=9),
        }
        # While jobs of one queue leave no room, it learns of the other by its sweep.
        site.swept(NEW)
        gate.touch()
        ended = {name: site.ours.wait(*ids) for name, ids in jobs.items()}
    started = {name: sorted(job.started_us for job in some) for name, some in ended.items()}
    assert max(started["free"][0], started["asked"][0]) <= started["offline"][0]
    assert started["asked"][0] < started["free"][-1], "they take turns"
    assert started["free"][0] < started["asked"][-1]


@pytest.mark.slow
def test_jobs_of_a_killed_worker_wait_for_its_version(site: Site) -> None:
    """Those that it had leased come back by the sweep of the other worker."""
    gate = site.folder / "killed"
    held = site.submit({"hold": str(gate)}, NEW)
    wait_until(lambda: site.job(held)["status"] == "running", "it runs")
    waiting = [site.submit({"n": n}, NEW) for n in range(8)]
    later = site.submit({"n": 9}, NEW, countdown=0.1)
    site.workers[NEW].kill()
    gate.touch()
    assert site.ran_on(site.submit({})) == OLD
    wait_until(lambda: site.job(held)["status"] == "queued", "its lease is reaped", 60)
    wait_until(lambda: site.job(later)["status"] == "queued", "it is due", 60)
    wait_until(
        lambda: site.job(waiting[-1])["waiting_for"] == "replica", "its report has expired", 60
    )
    result = found("queues", site.url, site.models)
    verdict(result, "fail", f"10 jobs waiting for version {NEW} of {WORDS}, which no worker serves")
    asked = site.submit({"n": 10}, NEW)  # of a version that was served a moment ago
    assert {site.job(job)["status"] for job in [held, *waiting, later, asked]} == {"queued"}
    site.workers[NEW].start()
    assert {site.ran_on(job) for job in [held, *waiting, later, asked]} == {NEW}


@contextmanager
def site_alone(site: Site, version: str) -> Iterator[None]:
    """Only the worker of this version claims."""
    other = site.workers[OLD if version == NEW else NEW]
    suspend(other.pid)
    try:
        yield
    finally:
        other.send(signal.SIGCONT)
