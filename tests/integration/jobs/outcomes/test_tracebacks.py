"""Where the author of a handler finds the traceback of a job that failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Client, errors
from tests.harness.clients.commands import headrace_here
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.wait import wait_until

HANDLER = """
import time

from headrace import Handler, errors

class Fragile(Handler):
    def inference(self, items):
        for item in items:
            if item == "hang":
                time.sleep(600)
            if item == "refuse":
                raise errors.InputError("no")
            item["text"]
        return items
"""
RAISED_AT = 'fragile.py", line 13, in inference'


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("fragile")
    (folder / "fragile.py").write_text(HANDLER)
    with shared_deployment.site(folder, {"fragile": {"handler": "fragile.py"}}) as running:
        yield running


def failed(site: Site, value: Any, query: str = "", **options: Any) -> dict[str, Any]:
    body = {"model": "fragile", "input": value, "options": options}
    response = site.api.http.post("/api/v1/jobs?wait=60", json=body)
    job = response.json()
    assert job["status"] == "failed", job
    found: dict[str, Any] = read(site, f"/api/v1/jobs/{job['id']}{query}")
    assert {**found, "traceback": ""} == {**job, "traceback": ""}
    return found


def read(site: Site, path: str) -> Any:
    return site.api.http.get(path).json()


def test_the_job_object_and_the_problem_have_it_unless_left_out(site: Site) -> None:
    job = failed(site, {"txt": 1})
    assert job["error"]["message"] == "KeyError: 'text'"
    assert RAISED_AT in job["traceback"].splitlines()[1], "it begins with the handler's code"
    assert job["traceback"].rstrip().endswith("KeyError: 'text'")
    own = f"/api/v1/jobs/{job['id']}"
    assert read(site, own + "/result")["traceback"] == job["traceback"]
    assert "traceback" not in read(site, own + "?traceback=0")
    assert "traceback" not in read(site, own + "/result?traceback=0")
    assert read(site, own + "?traceback=yes")["status"] == 400
    (listed,) = [one for one in read(site, "/api/v1/jobs")["jobs"] if one["id"] == job["id"]]
    assert "traceback" not in listed


def test_a_timeout_shows_the_stacks(site: Site) -> None:
    job = failed(site, "hang", timeout=1)
    assert job["error"]["type"] == "timeout"
    assert 'fragile.py", line 10 in inference' in job["traceback"]


def test_the_sdk_and_the_commands_show_it(site: Site, tmp_path: Path) -> None:
    url = site.api.url
    with Client(url) as client:
        handle = client.submit("fragile", {"txt": 1})
        with pytest.raises(errors.HandlerError) as caught:
            client.result(handle, timeout_s=60)
        assert RAISED_AT in caught.value.traceback
        assert RAISED_AT in client.status(handle.id).traceback
    for command in (["jobs", handle.id], ["watch", handle.id]):
        shown = headrace_here(*command, "--url", url, cwd=tmp_path).stdout
        assert RAISED_AT in shown, (command, shown)


def test_the_log_has_one_warning_without_values(site: Site) -> None:
    job = failed(site, {"a secret value": 1})
    wait_until(lambda: job["id"] in site.worker.log, "the line about the job")
    (line,) = [line for line in site.worker.log.splitlines() if job["id"] in line]
    assert "WARNING" in line
    assert "job failed: KeyError: 'text'" in line
    assert "error=handler-error" in line
    assert 'raised="KeyError at fragile.py:13"' in line
    assert "a secret value" not in line
    refused = failed(site, "refuse")
    wait_until(lambda: refused["id"] in site.worker.log, "the line about the refused job")
