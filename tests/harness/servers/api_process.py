"""The API as a process of its own, which a test may kill."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import httpx2

from headrace.server.ports import free_port
from tests.harness.http.plain_http import PLAIN
from tests.harness.processes.forked import Forked
from tests.harness.servers.up import ROOT
from tests.harness.wait import wait_until


def environ(models: Path, **settings: str) -> dict[str, str]:
    """An environment with these settings and no other."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    own.pop("REDIS_URL", None)
    given = {f"HEADRACE_{name.upper()}": value for name, value in settings.items()}
    return {**own, "HEADRACE_MODELS_FILE": str(models), **given}


def answers(http: httpx2.Client, path: str) -> bool:
    """Whether a server answers there with 200."""
    try:
        return http.get(path).status_code == 200
    except httpx2.TransportError:
        return False


class ApiProcess:
    """`python -m api` on one port, started as often as wanted."""

    #: Set by pytest; a benchmark's API is a program of its own, as a user's is.
    forked: ClassVar[bool] = False

    def __init__(self, redis_url: str, models: Path, **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environ = environ(models, redis_url=redis_url, port=str(self.port), **settings)
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    def start(self, ca_file: str = "") -> None:
        """Start it, and wait until it serves; by TLS with a certificate of this authority."""
        if ca_file:
            self.url = self.url.replace("http:", "https:")
            verify: ssl.SSLContext = ssl.create_default_context(cafile=ca_file)
        else:
            verify = PLAIN
        if self.forked:
            self._process = Forked(["api"], self._environ, ROOT, None)
        else:
            self._process = subprocess.Popen([sys.executable, "-m", "api"], env=self._environ)
        with httpx2.Client(base_url=self.url, timeout=5, verify=verify) as http:
            wait_until(lambda: answers(http, "/ready"), "the API is ready", 60)

    def restart(self, redis_url: str) -> None:
        """Stop it in order, and start it on the same port with another URL of Redis."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        self._environ["HEADRACE_REDIS_URL"] = redis_url
        self.start()

    def kill(self) -> None:
        """kill -9, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None


@contextmanager
def api_process(redis_url: str, models: Path, **settings: str) -> Iterator[ApiProcess]:
    """A running one, gone afterwards."""
    process = ApiProcess(redis_url, models, **settings)
    try:
        process.start()
        yield process
    finally:
        process.kill()
