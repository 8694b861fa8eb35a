"""Models that load on demand, over the API: what it shows of unloaded models, and of their jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api.components import model_status
from api.routes import event_stream
from headrace.config.model.catalog import load_catalog
from headrace.queue import findings
from headrace.registry.catalog import read_declared
from tests.harness.clients.commands import Commands
from tests.harness.clients.doctor import look, site, verdict
from tests.harness.http.events import reading
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Worker, celery_worker, write_models

OPTIONS: dict[str, Any] = {
    "handler": f"{HANDLERS / 'versioned.py'}:Versioned",
    "load": "on_demand",
    "idle_unload_s": 3600,
}


@dataclass
class Place:
    """An API and a worker."""

    models: Path
    api: ApiServer
    worker: Worker

    def call(self, method: str, path: str, **json: Any) -> Any:
        found = self.api.http.request(method, f"/api/v1/{path}", json=json or None)
        assert found.is_success, found.text
        return found.json()

    def state(self, model: str = "words") -> str:
        return str(self.call("GET", f"models/{model}")["state"])

    def ended(self, job_id: str) -> Any:
        return self.api.ended(job_id)


@pytest.fixture
def place(redis_db: RedisServer, tmp_path: Path) -> Iterator[Place]:
    models = write_models(tmp_path, words={**OPTIONS, "version": "1.0"}, eager={"handler": "echo"})
    with ExitStack() as stack:
        api = stack.enter_context(
            api_server(redis_db.url, load_catalog(models), read_declared(models), model_api=True)
        )
        worker = stack.enter_context(celery_worker(redis_db.url, models, tmp_path))
        worker.wait_ready("eager")
        yield Place(models, api, worker)


def test_an_unloaded_model_is_no_fault(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long this machine stands still.
    monkeypatch.setattr(findings, "SILENT_S", 60.0)
    wait_until(lambda: place.state() == "unloaded", "it is reported")
    http = place.api.http
    assert http.get("/ready?models=all").status_code == 200
    assert http.get("/ready").json()["models"]["words"]["state"] == "unloaded"
    metrics = http.get("/metrics").text
    assert 'headrace_model_ready_replicas{model="eager"} 1' in metrics
    assert 'headrace_model_ready_replicas{model="words"}' not in metrics
    with site(place.worker.redis_url, place.models) as whole:
        verdict(look(whole, "models"), "ok", "1 load on demand")


def test_its_job_waits_for_the_load_and_says_so(place: Place, tmp_path: Path) -> None:
    wait_until(lambda: place.state() == "unloaded", "it is reported")
    place.call("POST", "queues/headrace.words/pause")
    job = place.call("POST", "jobs", model="words", input={"n": 1})
    assert job["waiting_for"] == "load"
    assert place.call("GET", f"jobs/{job['id']}")["waiting_for"] == "load"
    with site(place.worker.redis_url, place.models) as whole:
        verdict(look(whole, "queues"), "warn", "words is paused")
    place.call("POST", "queues/headrace.words/resume")
    done = place.ended(job["id"])
    assert (done["status"], done["waiting_for"]) == ("succeeded", None)
    assert done["result"]["version"] == "1.0"
    wait_until(lambda: place.state() == "ready", "it is loaded")


def test_a_registered_model_is_taken_without_a_load(place: Place) -> None:
    done = place.call("PUT", "models/more/versions/1.0?wait=60", options=OPTIONS)
    assert done["state"] == "ready"
    wait_until(lambda: place.state("more") == "unloaded", "it is reported")
    assert not place.worker.states().get("more")
    job = place.call("POST", "jobs", model="more", input={"n": 1})
    assert place.ended(job["id"])["status"] == "succeeded"


def test_a_new_default_version_takes_the_queue_over_and_both_versions_load(place: Place) -> None:
    first = place.call("POST", "jobs", model="words", input={"n": 1})
    assert place.ended(first["id"])["result"]["version"] == "1.0"
    place.call("PUT", "models/words/versions/2.0?wait=60", options=OPTIONS)
    other = place.call("POST", "jobs", model="words", input={"n": 2}, version="2.0")
    assert place.ended(other["id"])["result"]["version"] == "2.0"
    place.call("PATCH", "models/words?wait=60", default_version="2.0")
    last = place.call("POST", "jobs", model="words", input={"n": 3})
    assert place.ended(last["id"])["result"]["version"] == "2.0"


def test_options_change_between_both_kinds_while_it_is_loaded(place: Place) -> None:
    place.call("PATCH", "models/words?wait=60", options={"load": "eager"})
    place.worker.wait_ready("words")
    pids = place.worker.states()["words"]["pids"]
    place.call("PATCH", "models/words?wait=60", options={"load": "on_demand"})
    assert place.worker.states()["words"]["pids"] == pids, "it serves on"
    place.call("PATCH", "models/words?wait=60", options={"idle_unload_s": 0.1})
    wait_until(lambda: place.state() == "unloaded", "it is unloaded", 120)
    job = place.call("POST", "jobs", model="words", input={"n": 1})
    assert place.ended(job["id"])["status"] == "succeeded"


def test_doctor_shows_why_one_cannot_be_loaded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "SILENT_S", 60.0)
    wait_until(lambda: place.state() == "unloaded", "it is reported")
    with site(place.worker.redis_url, place.models) as whole:
        for _, report in whole.alive:
            report.unloaded["words@1.0"] = "Traceback\nRuntimeError: broken"
        verdict(look(whole, "models"), "fail", "words@1.0", "RuntimeError: broken")


@pytest.fixture
def fragile(tmp_path: Path) -> dict[str, Any]:
    """Options of a handler that cannot be loaded if there is a file `broken`."""
    lines = [
        "from pathlib import Path",
        "from tests.harness.handlers.versioned import Versioned",
        "class Fragile(Versioned):",
        "    def initialize(self, context):",
        "        super().initialize(context)",
        f"        if Path({str(tmp_path / 'broken')!r}).exists():",
        "            raise RuntimeError('the weights are broken')",
    ]
    (tmp_path / "fragile.py").write_text("\n".join(lines))
    return {**OPTIONS, "handler": f"{tmp_path / 'fragile.py'}:Fragile"}


def test_jobs_of_one_that_cannot_be_loaded_show_why_and_run_once_it_can(
    place: Place, fragile: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    place.call("PUT", "models/more/versions/1.0", options=fragile)
    reason = "it cannot be loaded: RuntimeError: the weights are broken"
    job = place.call("POST", "jobs", model="more", input={"n": 1})
    commands = Commands(place.api.url, tmp_path)
    with (
        reading(f"{place.api.url}/api/v1/jobs/{job['id']}/events") as reader,
        commands.started("submit", "more", "--json-input", '{"n": 2}', "--wait") as waiting,
        commands.started("submit", "more", "--json-input", '{"n": 3}', "--stream") as streaming,
    ):
        wait_until(
            lambda: any(event.data.get("waiting_reason") == reason for event in reader.events),
            "an event has the reason", 60,
        )  # fmt: skip
        wait_until(
            lambda: place.call("GET", f"jobs/{job['id']}").get("waiting_reason") == reason,
            "the job has it", 60,
        )  # fmt: skip
        for process in (waiting, streaming):
            assert process.stderr is not None
            line = process.stderr.readline().decode()
            assert line == f"headrace: the jobs wait for the model more: {reason}\n"
        (tmp_path / "broken").unlink()
        assert [process.wait(120) for process in (waiting, streaming)] == [0, 0]
    assert "waiting_reason" not in place.ended(job["id"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_of_openai_ends_with_the_reason_that_no_worker_can_load_its_model(
    place: Place,
    fragile: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    monkeypatch.setattr(model_status, "LOAD_LOOK_S", 0.5)
    monkeypatch.setattr(event_stream, "HEARTBEAT_S", 0.5)
    (tmp_path / "broken").touch()
    place.call("PUT", "models/more/versions/1.0", options=fragile)
    body = {"model": "more", "prompt": "x", "stream": stream}
    found = place.api.http.post("/v1/completions", json=body, timeout=120)
    if found.status_code == 200:  # the stream had begun, with a comment
        (error,) = [line[6:] for line in found.text.splitlines() if line.startswith("data: {")]
    else:
        assert found.status_code == 503
        error = found.text
    assert "no worker can load model more: RuntimeError: the weights are broken" in error
    assert json.loads(error)["error"]["code"] == "model-not-loaded"
    (queue,) = [one for one in place.call("GET", "queues")["queues"] if one["model"] == "more"]
    assert (sum(queue["depth"].values()), queue["in_flight"]) == (0, 0), "it is cancelled"
    (tmp_path / "broken").unlink()
    job = place.call("POST", "jobs", model="more", input={"n": 1})
    assert place.ended(job["id"])["status"] == "succeeded"


def test_a_loaded_one_serves_on_if_its_reload_fails(
    place: Place, fragile: dict[str, Any], tmp_path: Path
) -> None:
    place.call("PUT", "models/more/versions/1.0?wait=60", options=fragile)
    job = place.call("POST", "jobs", model="more", input={"n": 1})
    assert place.ended(job["id"])["status"] == "succeeded"
    pids = place.worker.states()["more"]["pids"]
    (tmp_path / "broken").touch()
    place.call("POST", "models/more/reload")
    error = "the weights are broken"
    wait_until(lambda: error in place.worker.states()["more"]["error"], "it is reported", 120)
    # A look for work finds this one, after the load has failed.
    job = place.call("POST", "jobs", model="words", input={"n": 1})
    assert place.ended(job["id"])["status"] == "succeeded"
    assert place.worker.states()["more"]["pids"] == pids, "it serves on"
    job = place.call("POST", "jobs", model="more", input={"n": 2})
    assert place.ended(job["id"])["status"] == "succeeded"


def test_a_default_version_that_could_not_be_loaded_is_tried_again_if_no_other_serves(
    place: Place, fragile: dict[str, Any], tmp_path: Path
) -> None:
    """The version that has served on is unloaded as it is idle: else its jobs wait for ever."""
    first = place.call("POST", "jobs", model="words", input={"n": 1})
    assert place.ended(first["id"])["result"]["version"] == "1.0"
    (tmp_path / "broken").touch()
    eager = {**fragile, "load": "eager"}
    del eager["idle_unload_s"]
    place.call("PUT", "models/words/versions/2.0", options=eager)
    place.call("PATCH", "models/words", default_version="2.0")
    logged = "the model serves on as it was"
    wait_until(lambda: place.worker.says(logged, "words"), "2.0 cannot be loaded", 120)
    place.call("PATCH", "models/words", version="1.0", options={"idle_unload_s": 0.1})
    ended = "former processes ended: version 1.0"
    wait_until(lambda: place.worker.says(ended, "words"), "1.0 is unloaded", 120)
    job = place.call("POST", "jobs", model="words", input={"n": 2})
    (tmp_path / "broken").unlink()
    assert place.ended(job["id"])["result"]["version"] == "2.0"
