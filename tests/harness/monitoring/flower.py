"""A real Flower on the app of a deployment, and what a test asks of it over HTTP."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.jobs.ids import new_id
from headrace.server.ports import free_port
from tests.harness.processes.children import end_child
from tests.harness.wait import wait_until
from tests.harness.workers.worker import ROOT, Client

PASSWORD = "me:correct-horse"
FLOWER_TIMEOUT_S = 60


@dataclass
class Flower:
    """A running Flower, and clients of the deployment that it shows."""

    port: int
    redis_url: str
    folder: Path
    ours: Client

    @contextmanager
    def running(self) -> Iterator[str]:
        """A job that runs as long as the context."""
        gate = self.folder / new_id()
        (job_id,) = self.ours.submit("gated", {"until": str(gate)})
        try:
            yield job_id
        finally:
            gate.touch()

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        """Status and text of an answer, with the password."""
        return asked(self.port, method, path, body, password=PASSWORD)

    def read(self, path: str, body: dict[str, Any] | None = None) -> str:
        """The answer to a GET, or to a POST of this JSON, that succeeds."""
        method, data = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
        status, text = self.ask(method, path, data)
        assert status == 200, f"{status}: {text}"
        return text

    def json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return json.loads(self.read(path, body))

    def task(self, job_id: str) -> dict[str, Any]:
        """What Flower knows of a job; empty while it knows nothing."""
        status, text = self.ask("GET", f"/api/task/info/{job_id}")
        if status == 404:
            return {}
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    def wait_for(self, state: str, *job_ids: str) -> list[dict[str, Any]]:
        """Wait until Flower shows these jobs in this state."""
        wait_until(
            lambda: all(self.task(job_id).get("state") == state for job_id in job_ids),
            f"Flower shows {state}",
        )
        return [self.task(job_id) for job_id in job_ids]


def asked(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    password: str = "",
    **headers: str,
) -> tuple[int, str]:
    """Status and text of Flower's answer; of one without the password, where none is given."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=body, headers=headers, method=method
    )
    if password:
        encoded = base64.b64encode(password.encode()).decode()
        request.add_header("Authorization", f"Basic {encoded}")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@dataclass
class Process:
    """`headrace flower`, which has become Flower by the time that it answers."""

    port: int
    pid: int


@contextmanager
def running_flower(redis_url: str, models: Path, folder: Path, **environ: str) -> Iterator[Process]:
    """Flower as `headrace flower` runs it, behind a password."""
    port = free_port()
    given = {
        **os.environ,
        "FLOWER_BASIC_AUTH": PASSWORD,
        "HEADRACE_FLOWER_PORT": str(port),
        "HEADRACE_REDIS_URL": redis_url,
        "HEADRACE_STATE_DIR": str(folder / "flower"),
        "PYTHONPATH": str(ROOT),
        **environ,
    }
    command = [sys.executable, "-m", "headrace", "flower", "--models", str(models)]
    path = folder / "flower.log"
    with path.open("wb") as log:
        process = subprocess.Popen(command, env=given, cwd=folder, stdout=log, stderr=log)

    def answers() -> bool:
        assert process.poll() is None, path.read_text(errors="replace")
        try:
            return asked(port, "GET", "/healthcheck")[0] == 200
        except OSError:
            return False

    try:
        wait_until(answers, "Flower answers", FLOWER_TIMEOUT_S)
        yield Process(port, process.pid)
    except BaseException:
        print(path.read_text(errors="replace")[-4000:])  # noqa: T201 - pytest shows it
        raise
    finally:
        end_child(process, 10)
