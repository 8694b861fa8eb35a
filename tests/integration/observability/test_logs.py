"""What a deployment writes: every line is JSON with its fields, and none holds a secret."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from headrace.access.api_key import Scope
from headrace.access.key_store import ApiKeyStore
from tests.harness.clients.celery_client import stock_client
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.up import RunningUp, running_up, write_models
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS

#: No word of these may be seen in any process' output.
PASSWORD = "MARKER-password/of:redis"
INPUT = "MARKER-input"
RESULT = "MARKER-result"
QUERY = "MARKER-query"
HEADER = "MARKER-header"
FORGED = '\nforged\r\n\x1b[31m{"level":"critical"}\u2028line'


@dataclass
class Site:
    """A deployment that everything has happened to.

    Attributes:
        text: all that it has written.
        jobs: the ids of jobs by what they were to do.
    """

    up: RunningUp
    server: RedisServer
    http: httpx2.Client
    key: str
    jobs: dict[str, str]

    @property
    def text(self) -> str:
        return self.up.text()

    @property
    def lines(self) -> list[dict[str, Any]]:
        # All that is whole: somebody may just be writing the next one.
        return [json.loads(line) for line in self.text.rpartition("\n")[0].splitlines()]

    def about(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """The lines that say so, with these fields."""
        told = (line for line in self.lines if event in line["event"])
        return [line for line in told if fields.items() <= line.items()]

    def failed_requests(self) -> list[dict[str, Any]]:
        """The lines about commands of Redis that failed for a request."""
        lines = self.about("Redis command failed: ")
        return [line for line in lines if line["part"] == "api" and "request" in line]

    def submit(self, model: str, do: str, **options: Any) -> str:
        said = {"model": model, "input": {"do": do, "text": INPUT, "answer": RESULT}, **options}
        answer = self.http.post("/api/v1/jobs", json=said)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def ended(self, job_id: str) -> dict[str, Any]:
        def look() -> Any:
            job = self.http.get(f"/api/v1/jobs/{job_id}?wait=5").json()
            return job if job.get("finished_at") else None

        found = wait_until(look, f"{job_id} has ended", 90)
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("logs")
    handler = f"{HANDLERS / 'generation/talking.py'}"
    model = {"max_batch_size": 4, "max_retries": 0, "timeout_s": 2, "min_timeout_s": 1}
    models = {
        "talking": {"handler": f"{handler}:Talking", **model},
        "threads": {"handler": f"{handler}:InThreads", **model},
    }
    with redis_server("valkey9", "--appendonly", "yes", password=PASSWORD) as server:
        with server.client() as client:
            key, text = ApiKeyStore(client).create("test", (Scope.SUBMIT, Scope.READ))
        logs = {"LOG_FORMAT": "json", "LOG_LEVEL": "debug", "ACCESS_LOG": "true", "AUTH": "on"}
        variables: dict[str, Any] = {f"HEADRACE_{name}": value for name, value in logs.items()}
        with running_up(
            folder,
            models=write_models(folder, models),
            background=True,
            runner=True,
            REDIS_URL=server.url,
            **variables,
        ) as up:
            headers = {"authorization": f"Bearer {text}", "x-marker": HEADER}
            with httpx2.Client(
                base_url=f"http://127.0.0.1:{up.port}",
                headers=headers,
                timeout=60,
                verify=PLAIN,
            ) as http:
                site = Site(up, server, http, key.id, {})
                _everything_happens(site)
                yield site


def _everything_happens(site: Site) -> None:
    # By itself, so that nobody's failure has its batch split.
    patient = {"options": {"timeout": 60}}
    site.jobs["talk"] = site.submit("talking", "talk", **patient)
    site.ended(site.jobs["talk"])
    kinds = ("raise", "bad", "crash", "hang", "answer")
    site.jobs |= {do: site.submit("talking", do) for do in kinds}
    site.jobs["threads"] = site.submit("threads", "talk", **patient)
    for job_id in site.jobs.values():
        site.ended(job_id)
    _bad_requests(site)
    _a_batch_over_http(site)
    with stock_client(site.server.url) as celery:
        to: dict[str, Any] = {"queue": "headrace.talking"}
        celery.send_task("headrace.predict", args=["talking", INPUT], task_id=f"st{FORGED}", **to)
        sent = celery.send_task("headrace.predict", args=[f"other{FORGED}", INPUT], **to)
        wait_until(sent.ready, "what cannot be read has failed", 60)
    # Redis goes away, and comes back.
    site.server.stop(kill=True)
    wait_until(lambda: site.about("Redis is away"), "the worker has noticed", 60)
    body = json.dumps({"do": "talk", "text": INPUT}).encode()

    def logged_for_a_request() -> bool:
        # One such line is written each second, and it may be about what the API does by itself.
        assert site.http.post("/api/v1/models/talking/jobs", content=body).status_code == 503
        return bool(site.failed_requests())

    wait_until(logged_for_a_request, "a failed command is logged with its request")
    site.server.start()
    wait_until(lambda: site.http.get("/ready").status_code == 200, "all is back", 90)
    site.ended(site.submit("talking", "talk"))


def _bad_requests(site: Site) -> None:
    post, path = site.http.post, "/api/v1/models/talking/jobs"
    kind = {"content-type": "application/json"}
    assert post(path, content=f'["{INPUT}', headers=kind).status_code == 400
    assert post(path, params={"nothing": QUERY}, json=INPUT).status_code == 400
    assert post("/api/v1/jobs", json={"model": "talking", "imput": INPUT}).status_code == 400
    assert post("/api/v1/jobs/bulk", content=f"{{{INPUT}\n").status_code == 200
    forged = urllib.parse.quote(FORGED)
    assert site.http.get(f"/nothing{forged}").status_code == 404
    assert site.http.get(f"/api/v1/jobs/x{forged}").status_code in (400, 404)
    assert site.http.get("/live", headers={"x-request-id": "two words"}).status_code == 200
    bad = {"authorization": f"Bearer hr_{'0' * 12}_{'MARKER-secret'.ljust(43, 'x')}"}
    assert site.http.get("/api/v1/jobs", headers=bad).status_code == 401


def _a_batch_over_http(site: Site) -> None:
    line = {
        "custom_id": "one", "method": "POST", "url": "/api/v1/jobs",
        "body": {"model": "talking", "input": {"do": "raise", "text": INPUT}},
    }  # fmt: skip
    form = {"file": ("lines.jsonl", f"{json.dumps(line)}\n".encode())}
    file = site.http.post("/v1/files", data={"purpose": "batch"}, files=form).json()
    asked = {"input_file_id": file["id"], "endpoint": "/api/v1/jobs", "completion_window": "24h"}
    batch = site.http.post("/v1/batches", json=asked)
    assert batch.status_code == 200, batch.text
    path = f"/v1/batches/{batch.json()['id']}"
    wait_until(lambda: site.http.get(path).json()["status"] == "completed", "the batch is over", 90)
    site.jobs["batch"] = batch.json()["id"]


def test_no_line_holds_a_secret_an_input_or_a_result(site: Site) -> None:
    words = ("MARKER", urllib.parse.quote(PASSWORD, safe=""), "of:redis")
    found = [line for line in site.text.splitlines() for word in words if word in line]
    # A handler's own message may have what the handler puts into it, and nothing else.
    by_handler = ("job failed: ValueError: raised over", "job failed: this is bad:")
    for line in found:
        assert json.loads(line)["event"].startswith(by_handler), line
        assert not any(word in line for word in (QUERY, HEADER, "MARKER-secret", "of:redis"))


def test_every_line_is_json_of_its_own(site: Site) -> None:
    needed = {"timestamp", "level", "logger", "event", "part"}
    lines = site.lines
    assert [line for line in lines if not needed <= line.keys()] == []
    assert {"api", "worker", "model", "background", "runner", "headrace"} <= {
        line["part"] for line in lines
    }
    assert not any(line["level"] == "critical" for line in lines)


def test_what_clients_send_makes_no_line(site: Site) -> None:
    assert not any("forged" in line for line in site.text.splitlines() if line[0] != "{")
    [found] = [line for line in site.about("request") if "/nothing" in line["path"]]
    assert found["path"].startswith("/nothing%0Aforged%0D%0A")
    assert (found["status"], found["route"]) == (404, "")


def test_a_handlers_lines_say_model_batch_and_job(site: Site) -> None:
    job = site.jobs["talk"]
    [talked] = site.about("talked\nin two lines", job=job)
    assert talked["part"] == "model"
    assert talked["model"] == "talking"
    assert talked["mood"] == "good"
    batch = talked["batch"]
    [printed] = site.about("printed", batch=batch)
    assert (printed["logger"], printed["job"], printed["model"]) == ("stdout", job, "talking")
    assert site.about("whispered", batch=batch)
    [left] = site.about("batch dispatched", batch=batch)
    assert left["part"] == "worker"
    assert job in (left.get("job"), *left.get("jobs", ()))


def test_overlapped_verbs_say_their_own_batch(site: Site) -> None:
    job = site.jobs["threads"]
    batches = {
        line["batch"]
        for text in ("prepared", "talked", "finished")
        for line in site.about(text, job=job, model="threads")
    }
    assert len(batches) == 1
    assert len(site.about("finished", job=job)) == 1


def test_losses_name_their_jobs(site: Site) -> None:
    assert site.about("model process died during a batch", model="talking", level="error")
    assert any(
        site.jobs["hang"] in (line.get("job"), *line.get("jobs", ()))
        for line in site.about("exceeded its timeout", model="talking")
    )


def test_the_runner_names_its_batch(site: Site) -> None:
    [told] = site.about("completed: ", api_batch=site.jobs["batch"])
    assert (told["part"], told["event"]) == ("runner", "completed: 0 completed, 1 failed")


def test_the_access_log_names_each_request_and_its_client(site: Site) -> None:
    [made] = [
        line
        for line in site.about("request", method="POST", job=site.jobs["talk"])
        if line["route"] == "/api/v1/jobs"
    ]
    assert made["status"] == 202
    assert made["key"] == site.key
    assert made["client"] == "127.0.0.1"
    assert made["bytes"] > 100
    assert made["duration_ms"] > 0
    assert made["part"] == "api"
    refused = site.about("request", status=401)
    assert [line["path"] for line in refused] == ["/api/v1/jobs"]
    assert "key" not in refused[0]


def test_a_request_has_an_id(site: Site) -> None:
    given = site.http.get("/api/v1/jobs/nothing", headers={"x-request-id": "my/id=1"})
    assert given.headers["x-request-id"] == "my/id=1"
    wait_until(lambda: site.about("request", request="my/id=1"), "it is logged")
    for bad in ("two words", "x" * 129, 'a"b', ""):
        made = site.http.get("/api/v1/models", headers={"x-request-id": bad})
        assert made.headers["x-request-id"] != bad
        assert len(made.headers["x-request-id"]) > 12


def test_errors_of_a_request_are_found_by_its_id(site: Site) -> None:
    line = site.failed_requests()[0]
    assert len(line["request"]) > 12
    assert site.about("request", request=line["request"], status=503)
