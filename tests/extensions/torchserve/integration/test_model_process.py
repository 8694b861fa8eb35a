"""The model process of an archive: one bad request, its end, a hang, its packages and its life."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config.model.catalog import Catalog
from headrace.config.settings import Settings
from headrace.jobs.job import Job, State
from headrace.models.catalog import load_models
from tests.extensions.torchserve.harness.archives import loaded, write_archive
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models
from workers.model_process.startup import why_not_loaded

HANDLER = """
import os, signal, threading
from ts.torch_handler.base_handler import BaseHandler

class Mine(BaseHandler):
    def initialize(self, context):
        print("this is printed at the load", flush=True)

    def preprocess(self, data):
        return [row["body"] for row in data]

    def inference(self, data):
        if "raise" in data:
            raise ValueError("this request is bad")
        if "kill" in data:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in data:
            threading.Event().wait()
        return [[one, os.getpid()] for one in data]

    def postprocess(self, data):
        return data

    def get_insights(self, prepared, inputs, target):
        return [{"explains": inputs}]
"""
NATIVE = """
import importlib.util, sys
from headrace import Handler

class Native(Handler):
    def inference(self, items):
        found = importlib.util.find_spec("ts")
        ours = "extensions/torchserve/handlers" in str(found.origin if found else "")
        return [[ours, any("torchserve" in path for path in sys.path)] for _ in items]
"""


class Site:
    """A worker and an API: an archive in three models, and a native handler."""

    def __init__(self, worker: Worker, api: ApiServer, client: Client, known: Catalog) -> None:
        self.worker, self.api, self.client, self.known = worker, api, client, known

    def pids(self, model: str) -> set[int]:
        return set(self.worker.states()[model]["pids"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("process")
    archive = write_archive(folder / "archive", "service:handle", {"service.py": HANDLER})
    (folder / "native.py").write_text(NATIVE)
    mine: dict[str, Any] = {"source": str(archive)}
    models = write_models(
        folder,
        mine={**mine, "max_batch_size": 8, "max_batch_delay_ms": 500},
        alone=mine,
        worn={**mine, "max_jobs": 1},
        native={"handler": "native.py"},
    )
    with redis_server() as server:
        state = folder / "state"
        settings = Settings(redis_url=server.url, models_file=models, state_dir=state)
        known = load_models(settings)
        environ = {"HEADRACE_STATE_DIR": str(state)}
        with (
            celery_worker(server.url, models, folder, environ=environ) as worker,
            api_server(server.url, known, models_file=models, state_dir=state) as api,
            Client(server.url, models) as client,
        ):
            for model in ("mine", "alone", "worn", "native"):
                worker.wait_ready(model, timeout_s=120)
            yield Site(worker, api, client, known)
            nothing_leaks(client.redis)


def value(job: Job) -> Any:
    assert job.state is State.SUCCEEDED, job
    return json.loads(job.result_json or b"")[0]


def error(job: Job) -> str:
    assert job.state is State.FAILED, job
    return str(json.loads(job.error_json)["type"])


def test_one_bad_request_of_a_batch_fails_alone(site: Site) -> None:
    ids = site.client.submit("mine", "a", "raise", "b", "c")
    a, bad, b, c = site.client.wait(*ids)
    assert [value(one) for one in (a, b, c)] == ["a", "b", "c"]
    assert error(bad) == "handler-error"
    assert "ValueError: this request is bad" in bad.error_json


def test_a_request_that_ends_the_process_fails_alone(site: Site) -> None:
    before = site.pids("mine")
    *good, bad = site.client.wait(*site.client.submit("mine", "a", "b", "kill"), timeout_s=120)
    assert [value(one) for one in good] == ["a", "b"]
    assert error(bad) == "replica-lost"
    assert not before & site.pids("mine")


def test_a_request_that_hangs_is_ended_at_its_timeout(site: Site) -> None:
    ids = site.client.submit_beside("mine", "a", "b", bad="hang", timeout=1.0)
    *good, bad = site.client.wait(*ids, timeout_s=120)
    assert [value(one) for one in good] == ["a", "b"]
    assert error(bad) == "timeout"


def test_a_process_is_recycled_after_its_jobs(site: Site) -> None:
    before = site.pids("worn")
    (job,) = site.client.wait(*site.client.submit("worn", "a"), timeout_s=120)
    assert {json.loads(job.result_json or b"")[1]} == before

    def recycled() -> bool:
        now = site.pids("worn")
        return bool(now) and not now & before

    wait_until(recycled, "another process serves the model", timeout_s=120)


def test_an_archive_has_torchserves_defaults(site: Site) -> None:
    model = site.known.get("alone")
    assert (model.max_batch_size, model.max_batch_delay_ms, model.max_retries) == (1, 100.0, 0)
    assert (model.timeout_s, model.load_timeout_s) == (120.0, 120.0)
    jobs = site.client.wait(*site.client.submit("alone", "a", "b"))
    assert [job.batch_size for job in jobs] == [1, 1]


def test_a_job_asks_for_an_explanation(site: Site) -> None:
    path = "/api/v1/models/mine/jobs?wait=30"
    found = site.api.http.post(f"{path}&explain=true", json="the input").json()
    assert found["result"] == {"explains": "the input"}
    assert site.api.http.post(path, json="a").json()["result"][0] == "a"
    form = {"data": "the input", "explain": "true"}
    answer = site.api.http.post(path, files={key: (None, text) for key, text in form.items()})
    assert answer.json()["result"] == {"explains": "the input"}
    answer = site.api.http.post(f"{path}&explain=perhaps", json="a")
    assert answer.status_code == 400
    assert "parameter explain: expected a boolean" in answer.text


def test_prints_are_in_the_workers_log(site: Site) -> None:
    wait_until(lambda: "this is printed at the load" in site.worker.log, "it is in the log")


def test_a_native_handler_has_no_package_ts(site: Site) -> None:
    (job,) = site.client.wait(*site.client.submit("native", 1))
    assert json.loads(job.result_json or b"") == [False, False]


def test_the_archives_of_a_broken_handler_say_why(tmp_path: Path) -> None:
    """As `/ready` and the log have it: the author's frames, then what is missing."""
    write_archive(tmp_path, "service", {"service.py": "import no_such_package\n"})
    with pytest.raises(Exception, match="no_such_package") as caught:
        loaded(tmp_path, "service")
    said = why_not_loaded(caught.value)
    assert 'service.py", line 1' in said
    assert "entry.py" not in said
    assert "extensions/torchserve/handlers/handler.py" not in said
    assert said.endswith("and set install_requirements\n")
