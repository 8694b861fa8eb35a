"""How many modules a job passes: what a reader opens who follows it from its request to its answer.

A module is on the path if each of several jobs runs a function of it that nothing runs while there
is no job. So neither a timer nor a busy machine changes the number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headrace.redis import keys
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_process import ApiProcess
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import ROOT, Client, Worker, write_models

MODULES_MAX = 55
JOBS = 6
PAGE = ROOT / "docs" / "architecture" / "job-path.md"
RECORDER = ROOT / "tests" / "harness" / "recorder"


class RecordedApi(ApiProcess):
    """A Python of its own, because only its start reads the recorder."""

    forked = False


class RecordedWorker(Worker):
    """As `RecordedApi`; its model process is recorded too, by the environment."""

    forked = False


@dataclass
class Site:
    """An API, a worker and a model process that record what they run.

    Attributes:
        idle: the functions that have run while there was no job.
    """

    calls: Path
    api: ApiProcess
    client: Client
    idle: set[str] = field(default_factory=set)

    def job(self, http: httpx2.Client) -> list[str]:
        """Run a job; return the functions that ran until its answer came, in order."""
        offset = self.calls.stat().st_size
        answer = http.post("/api/v1/models/m/jobs?wait=60", json={"x": 1})
        assert answer.json().get("status") == "succeeded", answer.text
        return self._called_since(offset)

    def rest(self) -> None:
        """Let the last job be forgotten, and note what runs without one."""
        self._wait_for_reports(2)
        offset = self.calls.stat().st_size
        self._wait_for_reports(1)
        self.idle.update(self._called_since(offset))

    def _called_since(self, offset: int) -> list[str]:
        lines = self.calls.read_bytes()[offset:].decode().splitlines()
        return list(dict.fromkeys(lines))

    def _wait_for_reports(self, count: int) -> None:
        """Wait until the worker has reported so often."""
        for _ in range(count):
            before = self._reported_at()
            wait_until(lambda: self._reported_at() != before, "the worker reports")  # noqa: B023

    def _reported_at(self) -> Any:
        return self.client.redis.zrange(keys.WORKERS, 0, -1, withscores=True)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    calls = tmp_path / "calls"
    path = os.pathsep.join(map(str, (RECORDER, ROOT)))
    environ = {"RECORDED_CALLS": str(calls), "PYTHONPATH": path}
    models = write_models(tmp_path, m={"handler": "echo"})
    with redis_server() as server, Client(server.url, models) as client:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        api = RecordedApi(server.url, models)
        worker = RecordedWorker(server.url, models, tmp_path, environ=environ)
        try:
            worker.start()
            api.start()
            worker.wait_ready("m")
            yield Site(calls, api, client)
        finally:
            api.kill()
            if worker.process is not None:
                worker.kill()


def test_a_job_passes_few_modules(site: Site) -> None:
    with httpx2.Client(base_url=site.api.url, timeout=90, verify=PLAIN) as http:
        site.job(http)  # it connects, and imports the last modules
        jobs = []
        for _ in range(JOBS):
            site.rest()
            jobs.append(site.job(http))
        site.rest()
    always = set.intersection(*map(set, jobs)) - site.idle
    path = list(dict.fromkeys(call.split()[0] for call in jobs[0] if call in always))
    assert len(path) <= MODULES_MAX, f"a job passes {len(path)} modules:\n" + "\n".join(path)
    named = re.findall(r"^\| `(.*?)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [module for module in path if module not in named] == [], f"missing in {PAGE.name}"
