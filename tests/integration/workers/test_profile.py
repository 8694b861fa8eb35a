"""Profiles of running model processes: traces, stacks, and what goes wrong."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.commands import Commands
from tests.harness.servers.api_server import ApiServer, registry_server
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Worker, celery_worker, write_models

#: A copy in a folder of its own: torch would import a neighbour of the original, `cuda.py`.
FILE = "profiled.py"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MODELS: dict[str, dict[str, Any]] = {
    "turn": {"handler": f"{FILE}:InTurn", "max_batch_size": 4},
    "overlapped": {"handler": f"{FILE}:Overlapped", "max_batch_size": 4},
    "plain": {"handler": f"{FILE}:Plain", "max_batch_size": 4, "preprocess_processes": 1},
    "writing": {"handler": f"{FILE}:Writing"},
    # A profile of the option would be in the way of one that a test requests.
    "automatic": {
        "handler": f"{FILE}:Overlapped",
        "max_batch_size": 4,
        "profile": {"every": 3, "batches": 2},
    },
    "automatic_writing": {"handler": f"{FILE}:Writing", "profile": {"every": 30, "batches": 3}},
    "later": {"handler": f"{FILE}:Plain", "load": "on_demand"},
}


@dataclass
class Site:
    api: ApiServer
    worker: Worker
    temporary: Path

    def request(self, model: str, **body: Any) -> Any:
        return self.api.http.post(f"/api/v1/models/{model}/profile", json=body)

    def read(self, profile: str) -> Any:
        return self.api.http.get(f"/api/v1/profiles/{profile}").json()

    def ended(self, profile: str) -> Any:
        states = ("requested", "running")
        wait_until(lambda: self.read(profile)["state"] not in states, "the profile has ended")
        return self.read(profile)

    def profile(self, model: str, **body: Any) -> Any:
        found = self.request(model, **body)
        assert found.status_code == 202, found.text
        assert found.json()["state"] in ("requested", "running")
        return self.ended(found.json()["id"])

    def file(self, profile: Any, name: str) -> bytes:
        found = self.api.http.get(f"/api/v1/profiles/{profile['id']}/files/{name}")
        assert found.is_success, found.text
        assert {"name": name, "bytes": len(found.content)} in profile["files"]
        return bytes(found.content)

    def submit(self, model: str, value: Any = None) -> Any:
        body = {"model": model, "input": value or {}}
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        return self.api.http.post("/api/v1/jobs?wait=60", json=body, headers=headers).json()

    @contextmanager
    def load(self, model: str) -> Iterator[list[str]]:
        """Jobs, one after the other, until the end of the block; yields how each ended."""
        enough, ended = threading.Event(), list[str]()

        def run() -> None:
            while not enough.is_set():
                ended.append(self.submit(model)["status"])

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield ended
        finally:
            enough.set()
            thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("profiles")
    shutil.copy(HANDLERS / FILE, folder)
    file = write_models(folder, **MODELS)
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        api = stack.enter_context(registry_server(redis.url, file))
        temporary = folder / "tmp"
        temporary.mkdir()
        worker = stack.enter_context(
            celery_worker(redis.url, file, folder, environ={"TMPDIR": str(temporary)})
        )
        worker.wait_ready(*(name for name in MODELS if name != "later"))
        yield Site(api, worker, temporary)


def events(site: Site, profile: Any) -> list[dict[str, Any]]:
    found = json.loads(gzip.decompress(site.file(profile, "trace.json.gz")))["traceEvents"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("model", ["turn", "overlapped"])
def test_a_trace_has_the_operators_and_verbs_of_the_batches_and_no_job_is_lost(
    site: Site, model: str
) -> None:
    with site.load(model) as ended:
        profile = site.profile(model, batches=3, seconds=60)
    assert set(ended) == {"succeeded"}
    assert profile["state"] == "done", profile
    assert profile["error"] is None
    names = [event.get("name", "") for event in events(site, profile)]
    assert "aten::linear" in names
    for verb in ("inference", "postprocess"):
        marks = [name for name in names if name.startswith(f"{verb}: 1 items, batch ")]
        assert len(marks) >= 3, verb
        assert all(name.endswith(f", trace {TRACE}") for name in marks)
    table = site.file(profile, "operators.txt").decode()
    assert "aten::linear" in table
    assert "Self CPU" in table


def test_the_steps_of_a_generator_are_its_batches(site: Site, tmp_path: Path) -> None:
    commands = Commands(site.api.url, tmp_path)
    arguments = ("--batches", "5", "--seconds", "60", "-o", "made")
    with site.load("writing") as ended:
        done = commands.run("profile", "writing", *arguments)
    assert set(ended) == {"succeeded"}
    assert done.returncode == 0, done.stderr
    assert b"aten::linear" in done.stdout
    counted = re.search(rb"The operators of (\d+) steps", done.stdout)
    assert counted is not None
    assert int(counted[1]) >= 5
    text = gzip.decompress((tmp_path / "made" / "trace.json.gz").read_bytes())
    names = [event.get("name", "") for event in json.loads(text)["traceEvents"]]
    assert names.count("step: 1 requests") >= int(counted[1])


def test_stacks_show_the_step_of_a_generator(site: Site, tmp_path: Path) -> None:
    commands = Commands(site.api.url, tmp_path)
    with site.load("writing"):
        done = commands.run("profile", "writing", "--stack", "--seconds", "1.5", "-o", "made")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"step: ")
    assert b"Writing.step (profiles0/profiled.py:" in done.stdout
    folded = (tmp_path / "made" / "stacks.folded").read_text()
    assert "model process;step;Writing.step" in folded


def test_without_requests_no_step_ends(site: Site) -> None:
    profile = site.profile("writing", batches=1, seconds=0.2)
    assert "no step ended within 0.2 s" in profile["error"]


def test_stacks_show_the_functions_of_the_verbs_also_without_torch(site: Site) -> None:
    with site.load("plain") as ended:
        profile = site.profile("plain", kind="stack", seconds=1.5)
    assert set(ended) == {"succeeded"}
    assert profile["state"] == "done", profile
    table = site.file(profile, "functions.txt").decode()
    first = table.partition("\n")[0]
    assert first.startswith("preprocess: ")
    assert "spin (profiles0/profiled.py:" in table
    assert "slow_decode (profiles0/profiled.py:" in table
    for line in site.file(profile, "stacks.folded").decode().splitlines():
        stack, _, count = line.rpartition(" ")
        assert int(count) > 0
        process, _, rest = stack.partition(";")
        assert process in ("model process", "preprocess process 1")
        if "slow_decode" in rest:
            assert process == "preprocess process 1"
            assert rest.startswith("preprocess;")


def test_a_handler_without_torch_has_no_trace(site: Site) -> None:
    profile = site.profile("plain", batches=1)
    assert profile["state"] == "failed"
    assert "does not use torch" in profile["error"]
    assert "--stack" in profile["error"]
    assert profile["files"] == []


def test_without_jobs_a_trace_ends_with_an_error_and_the_next_one_works(site: Site) -> None:
    profile = site.profile("turn", batches=1, seconds=0.2)
    assert profile["state"] == "failed"
    assert "no batch ended within 0.2 s" in profile["error"]
    with site.load("turn"):
        assert site.profile("turn", batches=1, seconds=60)["state"] == "done"


def test_without_jobs_stacks_end_with_an_error(site: Site, tmp_path: Path) -> None:
    done = Commands(site.api.url, tmp_path).run("profile", "plain", "--stack", "--seconds", "0.2")
    assert done.returncode == 1
    assert b"no verb ran within 0.2 s; send jobs while it runs" in done.stderr
    assert done.stdout == b""
    assert list(tmp_path.iterdir()) == []


def test_only_one_profile_at_a_time(site: Site) -> None:
    first = site.request("turn", batches=1, seconds=60).json()
    second = site.request("turn", kind="stack")
    assert second.status_code == 409
    assert first["id"] in second.json()["detail"]
    with site.load("turn"):
        assert site.ended(first["id"])["state"] == "done"


def test_what_cannot_be_profiled_is_said_at_once(site: Site) -> None:
    found = site.request("nothing")
    assert found.status_code == 404
    assert site.request("turn", version="9").status_code == 404
    later = site.request("later")
    assert later.status_code == 409
    assert "no worker has a model process" in later.json()["detail"]
    assert site.request("turn", batches=0).status_code in (400, 422)
    assert site.request("turn", kind="magic").status_code in (400, 422)
    for path in ("", "/files/trace.json.gz"):
        assert site.api.http.get(f"/api/v1/profiles/none{path}").status_code == 404


@pytest.mark.parametrize("model", ["automatic", "automatic_writing"])
def test_the_option_profile_makes_traces_without_a_request(site: Site, model: str) -> None:
    def automatic() -> list[Any]:
        listed = site.api.http.get("/api/v1/profiles").json()["profiles"]
        return [one for one in listed if one["automatic"] and one["model"] == model]

    with site.load(model):
        wait_until(lambda: len(automatic()) >= 2, "two automatic profiles were saved")
    newest = automatic()[0]
    assert (newest["kind"], newest["state"]) == ("trace", "done")
    names = [event.get("name", "") for event in events(site, newest)]
    assert "aten::linear" in names
    listed = site.api.http.get("/api/v1/profiles").json()["profiles"]
    assert len(listed) <= 8


def test_the_command_saves_the_files_and_prints_the_table(site: Site, tmp_path: Path) -> None:
    commands = Commands(site.api.url, tmp_path)
    with site.load("turn"):
        done = commands.run("profile", "turn", "--batches", "1", "--seconds", "60", "-o", "made")
        assert done.returncode == 0, done.stderr
    assert b"aten::linear" in done.stdout
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        "operators.txt",
        "trace.json.gz",
    }
    newest = commands.json("profile", "--list")[0]
    again = commands.run("profile", "--fetch", newest["id"], "--json")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / f"profile-{newest['id']}" / "operators.txt").exists()


def test_the_command_ends_with_the_reason_of_a_failure(site: Site, tmp_path: Path) -> None:
    commands = Commands(site.api.url, tmp_path)
    failed = commands.run("profile", "plain", "--batches", "1")
    assert failed.returncode == 1
    assert b"--stack" in failed.stderr
    assert commands.run("profile", "--fetch", "none").returncode == 4
    assert commands.run("profile", "later").returncode == 2
    assert commands.run("profile").returncode == 2
    assert commands.run("profile", "turn", "--list").returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_dies_while_it_is_profiled_is_named(site: Site) -> None:
    asked = site.request("plain", kind="stack", seconds=120).json()["id"]
    wait_until(lambda: site.read(asked)["state"] == "running", "the profile runs")
    left = wait_until(lambda: [*site.temporary.glob("headrace-profile-*")], "its folder is there")
    (process,) = site.worker.states()["plain"]["pids"]
    os.kill(process, signal.SIGKILL)
    found = site.ended(asked)
    assert found["state"] == "failed"
    assert "the model process ended while it was profiled" in found["error"]
    site.worker.wait_ready("plain")
    # The next process has removed what the killed one has left.
    assert not any(path.exists() for path in left)
