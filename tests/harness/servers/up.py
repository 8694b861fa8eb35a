"""`headrace up` as a user runs it: a process of its own, read through HTTP and its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from headrace.server.ports import free_port
from tests.harness.processes.processes import descendants
from tests.harness.wait import wait_until

ROOT = Path(__file__).resolve().parents[3]
START_TIMEOUT_S = 90


def clean_environment(**variables: str) -> dict[str, str]:
    """This process' environment without what would configure Headrace or Flower, and with ours."""
    ours = ("HEADRACE_", "FLOWER_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) and k != "REDIS_URL"}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


def headrace(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a `headrace` command that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "headrace", *arguments],
        cwd=cwd, env=clean_environment(**variables), capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


def write_models(folder: Path, models: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """A models file; `echo` alone unless told otherwise, as it needs no torch."""
    path = folder / "models.yaml"
    chosen = models or {"echo": {"handler": "echo"}}
    path.write_text(
        yaml.safe_dump({"models": {name: dict(model) for name, model in chosen.items()}})
    )
    return path


class RunningUp:
    """One run of `headrace up` (or `headrace worker`, `headrace api`)."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        self.arguments = list(arguments)
        self.folder = folder
        self.port = free_port()
        self.state_dir = folder / "state"
        self.output = folder / "output"
        self._variables = variables
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "headrace", *self.arguments],
                cwd=self.folder, env=clean_environment(**self._variables), stdout=output,
                stderr=output, start_new_session=True,
            )  # fmt: skip

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def record(self) -> dict[str, Any]:
        found = json.loads((self.state_dir / "headrace.json").read_text())
        assert isinstance(found, dict)
        return found

    def wait_for(self, text: str) -> None:
        def seen() -> bool:
            assert self.process.poll() is None, self.text()
            return text in self.text()

        wait_until(seen, f"the output says {text!r}", START_TIMEOUT_S)

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", body, method=method, headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=90) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")

    def submit(self, model: str, value: object) -> str:
        status, job = self.request(
            "POST", f"/api/v1/models/{model}/jobs", json.dumps(value).encode(),
            **{"Content-Type": "application/json"},
        )  # fmt: skip
        assert status == 202, job
        return str(job["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        status, job = self.request("GET", f"/api/v1/jobs/{job_id}")
        assert status in (200, 202), job
        assert isinstance(job, dict)
        return job

    def raw_result(self, job_id: str) -> bytes:
        """A result as it is, which need not be JSON."""
        url = f"http://127.0.0.1:{self.port}/api/v1/jobs/{job_id}/result"
        with urllib.request.urlopen(url, timeout=30) as response:
            return bytes(response.read())

    def result_of(self, job_id: str, timeout_s: float = 60) -> Any:
        """Wait for a job to succeed, and give its result."""
        job = wait_until(
            lambda: (j := self.job(job_id))["status"] in ("succeeded", "failed") and j,
            f"job {job_id} ends",
            timeout_s,
        )
        assert isinstance(job, dict)
        assert job["status"] == "succeeded", job
        return job["result"]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def running_up(
    folder: Path,
    *arguments: str,
    models: Path | None = None,
    flower: bool = False,
    background: bool = False,
    runner: bool = False,
    **variables: str,
) -> Iterator[RunningUp]:
    """A running `headrace up`; every process that it started is gone afterwards.

    `folder` is its working directory; the state directory below it outlives the run.
    """
    up = RunningUp(folder, **variables)
    up.arguments = [
        "up", "--state-dir", str(up.state_dir), "--port", str(up.port),
        "--models", str(models or write_models(folder)), *arguments,
    ]  # fmt: skip
    if not flower:
        up.arguments.append("--no-flower")
    if not background:
        up.arguments.append("--no-background")
    if not runner:
        up.arguments.append("--no-runner")
    with started(up):
        up.wait_for("Ctrl-C stops everything")
        yield up


@contextmanager
def running_runner(
    folder: Path, models: Mapping[str, Mapping[str, Any]], **variables: str
) -> Iterator[RunningUp]:
    """A `headrace up` that runs batches, once all of these models are loaded."""
    flags: dict[str, Any] = {**variables, "runner": True}
    with running_up(folder, models=write_models(folder, models), **flags) as up:
        wait_until(lambda: up.request("GET", "/ready?models=all")[0] == 200, "all are loaded", 90)
        yield up


@contextmanager
def started(up: RunningUp) -> Iterator[RunningUp]:
    """Start it, and leave none of its processes behind whatever happens."""
    up.start()
    try:
        yield up
    except BaseException:
        print(up.text()[-8000:])  # noqa: T201 - pytest shows it with the failure
        raise
    finally:
        # Killed, because an orderly stop takes seconds: a test that wants one calls `stop`.
        left = descendants(up.process.pid) if up.process.poll() is None else []
        up.process.kill()
        up.process.wait(60)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
