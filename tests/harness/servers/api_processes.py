"""The API as `headrace api` starts it, in processes of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from headrace.server.supervisor.proc import children_of
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.up import RunningUp, started, write_models
from tests.harness.wait import wait_until

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


class ApiProcesses(RunningUp):
    """One `headrace api`, of one process or of several on one port."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pids(self) -> list[int]:
        """The API's processes below their supervisor."""
        return children_of(self.process.pid)

    def metrics(self) -> dict[str, float]:
        """The samples of a scrape, under their names with labels."""
        text = httpx2.get(f"{self.url}/metrics", timeout=30, verify=PLAIN).text
        return {
            f"{name}{{{labels}}}": float(value) for name, labels, value in _SAMPLE.findall(text)
        }

    def admitted(self) -> float:
        """Jobs for `echo` that the API says it has enqueued."""
        return self.metrics()['headrace_jobs_admitted_total{model="echo"}']

    def wait_for_waiters(self, count: int) -> None:
        """Wait until so many requests wait, over all API processes on that Redis."""
        wait_until(
            lambda: self.metrics()["headrace_requests_waiting{}"] == count,
            f"{count} requests wait",
            60,  # what a killed process has said last stands for 15 s
        )


@contextmanager
def api_processes(
    folder: Path, redis_url: str, count: int = 1, *arguments: str, **environ: str
) -> Iterator[ApiProcesses]:
    """A running API; every process of it is gone afterwards."""
    folder.mkdir(exist_ok=True)
    api = ApiProcesses(folder, HEADRACE_REDIS_URL=redis_url, **environ)
    api.arguments = [
        "api", "--port", str(api.port), "--processes", str(count),
        "--models", str(write_models(folder)), *arguments,
    ]  # fmt: skip
    with started(api):
        api.wait_for("listening on" if count == 1 else f"{count} API processes on")
        yield api
