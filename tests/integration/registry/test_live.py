"""Models that change while a real worker runs jobs: reloads, versions, replicas, failed loads."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.redis import keys
from tests.harness.servers.api_server import ApiServer, registry_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Worker, celery_worker, write_models

MODEL = "words"
HANDLER = """
from headrace import Handler


class Answers(Handler):
    def initialize(self, context):
        self.version = context.version

    def inference(self, items):
        return [{"text": "%s", "version": self.version, "items": len(items)} for _ in items]
"""
BROKEN = "raise RuntimeError('no such luck')\n"


@dataclass
class Site:
    """An API, a worker, and the folder of their models file."""

    folder: Path
    api: ApiServer
    worker: Worker

    def write_handler(self, text: str) -> None:
        # A new file: Python would take the compiled one if time and size were the same.
        (self.folder / "answers.py").write_text(HANDLER % text if len(text) < 20 else text)

    def model(self, path: str = "") -> Any:
        return self.api.http.get(f"/api/v1/models/{MODEL}{path}").json()

    def post(self, path: str, **json: Any) -> Any:
        found = self.api.http.post(f"/api/v1/models/{MODEL}{path}", json=json or None)
        assert found.is_success, found.text
        return found.json()

    def patch(self, **json: Any) -> None:
        found = self.api.http.patch(f"/api/v1/models/{MODEL}", json=json)
        assert found.is_success, found.text

    def answer(self, version: str = "") -> Any:
        body = {"model": MODEL, "input": {}, **({"version": version} if version else {})}
        found = self.api.http.post("/api/v1/jobs?wait=60", json=body)
        assert found.json()["status"] == "succeeded", found.text
        return found.json()["result"]

    def state(self, name: str = MODEL) -> Any:
        return self.worker.states().get(name, {})


@contextmanager
def site_of(redis_url: str, folder: Path, **options: Any) -> Iterator[Site]:
    file = write_models(folder, **{MODEL: {"handler": "answers.py", **options}})
    (folder / "answers.py").write_text(HANDLER % "first")
    with ExitStack() as stack:
        api = stack.enter_context(registry_server(redis_url, file))
        environ = {"PYTHONDONTWRITEBYTECODE": "1"}
        worker = stack.enter_context(celery_worker(redis_url, file, folder, environ=environ))
        worker.wait_ready(MODEL)
        yield Site(folder, api, worker)


@pytest.fixture
def site(redis_db: RedisServer, tmp_path: Path) -> Iterator[Site]:
    with site_of(redis_db.url, tmp_path) as site:
        yield site


def test_a_reload_changes_the_code_under_load_and_loses_no_job(site: Site) -> None:
    stop, answers = threading.Event(), Counter[str]()

    def submit() -> None:
        while not stop.is_set():
            answers[site.answer()["text"]] += 1

    clients = [threading.Thread(target=submit) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        wait_until(partial(answers.__getitem__, "first"), "the first code answers")
        for text in ("second", "third", "fourth"):
            site.write_handler(text)
            site.post("/reload")
            wait_until(partial(answers.__getitem__, text), f"the {text} code answers")
            wait_until(lambda: len(site.state()["pids"]) == 1, "the old process has ended")
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert set(answers) == {"first", "second", "third", "fourth"}


def test_code_that_cannot_be_loaded_leaves_the_old_code_in_service(site: Site) -> None:
    (pid,) = site.worker.model_pids()
    site.write_handler(BROKEN)
    site.post("/reload")

    error = wait_until(lambda: site.model()["error"], "the failed load is reported")
    assert "no such luck" in error
    assert site.answer()["text"] == "first"
    assert site.worker.model_pids() == [pid]
    site.write_handler("mended")
    site.post("/reload")
    wait_until(lambda: site.answer()["text"] == "mended", "the mended code answers")
    wait_until(lambda: site.model()["error"] is None, "the failure is over")


def test_a_change_that_is_taken_back_leaves_no_error(site: Site) -> None:
    (pid,) = site.worker.model_pids()
    site.write_handler(BROKEN)
    site.patch(options={"max_batch_size": 3})
    wait_until(lambda: site.model()["error"], "the failed load is reported")

    site.patch(options={"max_batch_size": None})
    wait_until(lambda: site.model()["error"] is None, "what serves is what is wanted")
    assert site.worker.model_pids() == [pid]
    assert site.answer()["text"] == "first"


def test_a_worker_goes_on_with_what_it_has_while_a_model_is_not_readable(
    site: Site, redis_db: RedisServer
) -> None:
    with redis_db.client() as client:
        client.hset(keys.MODELS, "broken", b"7 \xc1")
        client.hincrby(keys.REGISTRY, "generation", 1)
        wait_until(lambda: site.worker.says("is not readable", "broken"), "it is logged")
        assert site.answer()["text"] == "first"
        client.hdel(keys.MODELS, "broken")
    site.write_handler("second")
    site.post("/reload")
    wait_until(lambda: site.answer()["text"] == "second", "the worker follows again")


def waited(site: Site, method: str, path: str, **json: Any) -> Any:
    """The answer to a change that waits for the workers."""
    url = f"/api/v1/models/{MODEL}{path}?wait=60"
    found = site.api.http.request(method, url, json=json or None, timeout=120)
    assert found.is_success, found.text
    return found.json()


def test_a_change_can_be_waited_for(site: Site) -> None:
    site.write_handler("second")
    done = waited(site, "POST", "/reload")
    assert (done["state"], done["error"]) == ("ready", None)
    assert site.answer()["text"] == "second"

    site.write_handler(BROKEN)
    done = waited(site, "PUT", "/versions/2.0", options={"handler": "answers.py"})
    assert done["state"] == "failed"
    assert "no such luck" in done["error"]
    site.write_handler("third")
    done = waited(site, "PUT", "/versions/2.0", options={"handler": "answers.py"})
    assert (done["state"], done["error"]) == ("ready", None)
    assert site.answer("2.0")["text"] == "third"
    assert waited(site, "PATCH", "", default_version="2.0")["state"] == "ready"
    assert site.answer() == {"text": "third", "version": "2.0", "items": 1}
    assert waited(site, "PATCH", "", options={"replicas": 2})["state"] == "ready"
    assert len(site.worker.model_pids()) == 3


def test_a_source_that_no_worker_can_read_is_the_outcome_of_a_wait(site: Site) -> None:
    done = waited(site, "PUT", "/versions/2.0", options={"source": "missing.zip"})

    assert done["state"] == "failed"
    assert "missing.zip" in done["error"]


def runs(site: Site, replicas: int) -> bool:
    state = site.state()
    return bool(len(state["pids"]) == state["ready"] == replicas)


def test_replicas_follow_the_registry_up_down_to_none_and_back(site: Site) -> None:
    for replicas in (3, 1, 0):
        site.patch(options={"replicas": replicas})
        wait_until(partial(runs, site, replicas), f"{replicas} processes run")
    job = site.post("/jobs")
    site.patch(options={"replicas": 1})
    found = site.api.http.get(f"/api/v1/jobs/{job['id']}?wait=60").json()
    assert found["status"] == "succeeded"


def test_a_version_is_added_promoted_and_the_old_one_removed(site: Site) -> None:
    http = site.api.http
    site.write_handler("second")
    put = http.put(
        f"/api/v1/models/{MODEL}/versions/2.0", json={"options": {"handler": "answers.py"}}
    )
    assert put.status_code == 201, put.text
    wait_until(lambda: site.state("words@2.0").get("state") == "ready", "version 2.0 is ready")
    assert site.answer()["version"] == "1.0"
    assert site.answer("2.0") == {"text": "second", "version": "2.0", "items": 1}
    assert site.answer("1.0")["text"] == "first"

    site.patch(default_version="2.0")
    wait_until(lambda: site.answer()["version"] == "2.0", "2.0 is the default version")
    assert site.answer("1.0")["version"] == "1.0"
    removed = http.delete(f"/api/v1/models/{MODEL}/versions/1.0?wait=60")
    assert (removed.status_code, removed.json()["state"]) == (200, "ready")
    assert len(site.worker.model_pids()) == 1
    assert site.answer()["version"] == "2.0"


def test_a_model_is_added_and_removed(site: Site) -> None:
    http = site.api.http
    url = "/api/v1/models/echo2"
    assert http.put(f"{url}/versions/1", json={"options": {"handler": "echo"}}).is_success
    done = http.post(f"{url}/jobs?wait=60", json={"x": 1}).json()
    assert done["result"] == {"x": 1}
    assert http.delete(f"{url}?wait=60").status_code == 204
    assert "echo2" not in site.worker.states()
    assert site.answer()["text"] == "first"


def test_traffic_waits_until_the_workers_serve_its_versions(site: Site) -> None:
    http = site.api.http
    url = f"/api/v1/models/{MODEL}"
    options = {"handler": "answers.py"}
    assert http.put(f"{url}/versions/2.0", json={"options": options}).is_success
    done = http.put(f"{url}/traffic?wait=60", json={"weights": {"1.0": 1, "2.0": 1}}).json()
    assert done["state"] == "ready"
    assert site.state("words@2.0")["state"] == "ready"
    assert "state" not in http.get(f"{url}/traffic").json()

    site.write_handler(BROKEN)
    assert http.put(f"{url}/versions/3.0", json={"options": options}).is_success
    done = http.put(f"{url}/traffic?wait=60", json={"shadow": "3.0"}).json()
    assert (done["state"], "no such luck" in done["error"]) == ("failed", True)
    assert http.delete(f"{url}/traffic?wait=60").json()["state"] == "ready"


def test_where_two_copies_do_not_fit_the_old_process_ends_first(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with site_of(redis_db.url, tmp_path, recycle_overlap=False) as site:
        site.write_handler("second")
        site.post("/reload")
        wait_until(lambda: site.answer()["text"] == "second", "the second code answers")


def test_a_worker_with_another_models_file_serves_its_own(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with site_of(redis_db.url, tmp_path) as site:
        other = tmp_path / "other"
        other.mkdir()
        file = write_models(other, spare={"handler": "echo"})
        with celery_worker(redis_db.url, file, other, node="cpu1@test") as worker:
            worker.wait_ready("spare")
            wait_until(lambda: worker.says("serves its own file", "models"), "it is logged")
            assert set(worker.states()) == {"", "spare"}
            assert site.answer()["text"] == "first"


def test_a_worker_removes_environments_that_no_model_has_used_for_a_week(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    file = write_models(tmp_path, echo={"handler": "echo"})
    stale = tmp_path / "state" / "environments" / ("0" * 32)
    stale.mkdir(parents=True)
    os.utime(stale, (1, 1))
    environ = {
        "HEADRACE_STATE_DIR": str(tmp_path / "state"),
        "HEADRACE_INSTALL_REQUIREMENTS": "true",
    }
    with (
        registry_server(redis_db.url, file),
        celery_worker(redis_db.url, file, tmp_path, environ=environ) as worker,
    ):
        worker.wait_ready("echo")
        assert not stale.exists()
