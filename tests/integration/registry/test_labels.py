"""Labels: models that only some workers of a deployment take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.config.model.catalog import load_catalog
from headrace.queue import findings
from headrace.registry.catalog import read_declared
from tests.harness.clients.doctor import look, site, verdict
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Worker, celery_worker, write_models


@dataclass
class Hosts:
    """An API and two workers, as of two hosts with other labels."""

    models: Path
    api: ApiServer
    one: Worker
    two: Worker

    def call(self, method: str, path: str, **json: Any) -> Any:
        found = self.api.http.request(method, f"/api/v1/models{path}", json=json or None)
        assert found.is_success, found.text
        return found.json()

    def job(self, job_id: str) -> Any:
        return self.api.job(job_id)


@pytest.fixture
def hosts(redis_db: RedisServer, tmp_path: Path) -> Iterator[Hosts]:
    models = write_models(
        tmp_path,
        everywhere={"handler": "echo"},
        special={"handler": "echo", "labels": ["gpu=a100"]},
        # Only hosts that are not here have its source.
        elsewhere={"source": "elsewhere.zip", "version": "1", "labels": ["zone=c"]},
    )
    with ExitStack() as stack:
        api = stack.enter_context(
            api_server(redis_db.url, load_catalog(models), read_declared(models))
        )
        one, two = (
            stack.enter_context(
                celery_worker(
                    redis_db.url, models, tmp_path, node=node,
                    environ={"HEADRACE_WORKER_LABELS": labels},
                )
            )
            for node, labels in (("cpu0@one", "gpu=a100,zone=b"), ("cpu0@two", "zone=b"))
        )  # fmt: skip
        one.wait_ready("everywhere", "special")
        two.wait_ready("everywhere")
        yield Hosts(models, api, one, two)


def test_a_worker_that_lacks_a_label_serves_the_other_models_only(hosts: Hosts) -> None:
    assert set(hosts.two.states()) == {"", "everywhere"}
    (worker,) = hosts.call("GET", "/special")["workers"]
    assert (worker["node"], worker["labels"]) == ("cpu0@one", ["gpu=a100", "zone=b"])
    (version,) = hosts.call("GET", "/special/versions")["versions"]
    assert version["unserved"] is None


def test_labels_change_while_jobs_wait_and_none_is_lost(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long this machine stands still.
    monkeypatch.setattr(findings, "SILENT_S", 60.0)
    url = hosts.one.redis_url
    hosts.call("PATCH", "/special", options={"labels": ["gpu=h100"]})
    wait_until(lambda: "special" not in hosts.one.states(), "the worker has left the model")
    (version,) = hosts.call("GET", "/special/versions")["versions"]
    assert version["unserved"] == (
        "no worker fits: cpu0@one lacks gpu=h100, cpu0@two lacks gpu=h100"
    )
    job = hosts.call("POST", "/special/jobs", x=1)
    wait_until(lambda: hosts.job(job["id"])["waiting_for"] == "replica", "no worker takes it")
    assert "no worker fits: cpu0@one lacks gpu=h100" in hosts.job(job["id"])["waiting_reason"]

    hosts.call("PATCH", "/special", options={"labels": ["zone=b"]})
    done = hosts.api.http.get(f"/api/v1/jobs/{job['id']}?wait=60").json()
    assert done["status"] == "succeeded", done
    hosts.one.wait_ready("special")
    hosts.two.wait_ready("special")
    with site(url, hosts.models) as whole:
        verdict(look(whole, "workers"), "ok", "cpu0@one (gpu=a100, zone=b)")


def test_doctor_names_what_each_worker_lacks(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    models = write_models(
        tmp_path / "new",
        everywhere={"handler": "echo"},
        special={"handler": "echo", "labels": ["gpu=h100"]},
    )
    with site(hosts.one.redis_url, models) as whole:
        for _, report in whole.alive:
            report.models.pop("special", None)
        verdict(look(whole, "models"), "warn", "no worker serves special", "gpu=h100")


def test_a_worker_that_fits_no_model_serves_once_one_fits(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    models = write_models(tmp_path, special={"handler": "echo", "labels": ["gpu=a100"]})
    declared = read_declared(models)
    with (
        api_server(redis_db.url, load_catalog(models), declared) as api,
        celery_worker(redis_db.url, models, tmp_path) as worker,
    ):
        wait_until(lambda: set(worker.states()) == {""}, "the worker reports, without a model")
        done = api.http.patch("/api/v1/models/special", json={"options": {"labels": []}})
        assert done.is_success, done.text
        worker.wait_ready("special")


@pytest.mark.parametrize("other_version", [False, True])
def test_jobs_of_a_lost_worker_are_queued_again_by_one_that_lacks_the_label(
    redis_db: RedisServer, tmp_path: Path, other_version: bool
) -> None:
    """It may have an unloaded version of the model too."""
    gated = {"handler": f"{HANDLERS / 'gated.py'}:Gated", "labels": ["gpu=a100"]}
    models = write_models(tmp_path, everywhere={"handler": "echo"}, special=gated)
    worker_of = partial(celery_worker, redis_db.url, models, tmp_path)
    labels = {"HEADRACE_WORKER_LABELS": "gpu=a100"}
    with (
        api_server(
            redis_db.url, load_catalog(models), read_declared(models), model_api=True
        ) as api,
        worker_of(node="cpu0@two", environ={"HEADRACE_LEASE_TTL_S": "2"}) as two,
        worker_of(node="cpu0@one", environ={"HEADRACE_LEASE_TTL_S": "2", **labels}) as one,
    ):
        two.wait_ready("everywhere")
        one.wait_ready("special")
        if other_version:
            options = {"handler": "echo", "load": "on_demand"}
            put = "/api/v1/models/special/versions/2.0?wait=60"
            assert api.http.put(put, json={"options": options}).is_success

        def state(job_id: str) -> Any:
            return api.job(job_id)["status"]

        def submit(**options: Any) -> str:
            body = {"input": {"until": str(tmp_path / "gate")}, "options": options}
            answer = api.http.post("/api/v1/jobs", json={"model": "special", **body})
            assert answer.is_success, answer.text
            return str(answer.json()["id"])

        job = submit()
        wait_until(lambda: state(job) == "running", "the job runs")
        one.kill()
        wait_until(lambda: state(job) == "queued", "the job is in its queue again", 120)
        expires = submit(expires=0.1)
        wait_until(lambda: state(expires) == "expired", "the other job has expired", 120)

        (tmp_path / "gate").touch()
        with worker_of(node="cpu0@three", environ=labels):
            wait_until(lambda: state(job) == "succeeded", "the job has run", 120)
