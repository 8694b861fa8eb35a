"""Debian's Prometheus and Alertmanager, with this repository's own configuration."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from headrace.server.ports import free_port
from tests.harness.http.plain_http import PLAIN
from tests.harness.processes.children import end_child
from tests.harness.wait import wait_until

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "headrace.rules.yml"
#: The address of docs/operations.md that alerts link to.
RUNBOOKS = "https://docs.example/operations.md"
PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
}


def require(program: str) -> str:
    """A program's path. A missing one skips on a laptop and fails in CI."""
    found = shutil.which(program)
    if found is None:
        message = f"no {program} on the PATH (Debian: apt-get install {PACKAGES[program]})"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


def checked(program: str, *arguments: str) -> str:
    """What a tool says; an error that it finds fails the test."""
    done = subprocess.run(
        [require(program), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@dataclass
class Receiver:
    """Hears what Alertmanager tells.

    Attributes:
        heard: path and alert of each notification.
    """

    port: int
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def names(self, path: str) -> set[str]:
        """The alerts that fire, of those that were told there."""
        return {
            alert["labels"]["alertname"]
            for where, alert in list(self.heard)
            if where == path and alert["status"] == "firing"
        }


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A webhook on a port of its own."""
    told = Receiver(0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.heard.extend((self.path, alert) for alert in body["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join(60)


@dataclass
class Prometheus:
    """A running Prometheus."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """What its HTTP API gives."""
        answer = httpx2.get(
            f"{self.url}/api/v1/{path}", params=parameters, timeout=30, verify=PLAIN
        ).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of a query, as of the last scrape that was answered.

        After one that was not, as on a machine that stood still, there are none until the next.
        """
        scraped_at = wait_until(self._scraped_at, "a scrape is answered")
        found = self.get("query", query=expr, time=scraped_at)
        result: list[dict[str, Any]] = found["result"]
        return result

    def _scraped_at(self) -> str:
        series = self.get("query", query="up[1m]")["result"]
        return max((str(at) for one in series for at, up in one["values"] if up == "1"), default="")

    def value(self, expr: str) -> float:
        """The only value of a query; 0 where there is none."""
        found = self.query(expr)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else 0.0


@contextmanager
def prometheus(folder: Path, target: str, alertmanager: str) -> Iterator[Prometheus]:
    """Prometheus as deploy/prometheus has it, on these addresses, and each second."""
    program = require("prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    assert list(config["global"]["external_labels"]) == ["runbooks"]
    config["global"]["external_labels"] = {"runbooks": RUNBOOKS}
    # The rules as they are, without their patience.
    rules = folder / RULES.name
    config["rule_files"] = [str(rules)]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    managers = config["alerting"]["alertmanagers"][0]
    managers["static_configs"][0]["targets"] = [alertmanager]
    folder.mkdir()
    rules.write_text(re.sub(r"\bfor: \w+", "for: 1s", RULES.read_text()))
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        program, f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with _running(command, folder / "log", f"http://127.0.0.1:{port}") as url:
        yield Prometheus(url)


@contextmanager
def alertmanager(folder: Path, webhook_port: int) -> Iterator[str]:
    """Alertmanager as deploy/alertmanager has it, without its patience; its address."""
    program = require("prometheus-alertmanager")
    text = (DEPLOY / "alertmanager" / "alertmanager.yml").read_text()
    text = text.replace("127.0.0.1:9099", f"127.0.0.1:{webhook_port}")
    text = re.sub(r"group_(wait|interval): \w+", r"group_\1: 1s", text)
    folder.mkdir()
    path = folder / "alertmanager.yml"
    path.write_text(text)
    address = f"127.0.0.1:{free_port()}"
    command = [
        program, f"--config.file={path}", f"--storage.path={folder / 'data'}",
        f"--web.listen-address={address}", "--cluster.listen-address=", "--log.level=warn",
    ]  # fmt: skip
    with _running(command, folder / "log", f"http://{address}"):
        yield address


@contextmanager
def _running(command: list[str], log: Path, url: str) -> Iterator[str]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent)
    try:
        wait_until(lambda: _ready(process, log, url), f"{command[0]} is ready", 90)
        yield url
    finally:
        end_child(process, 15)


def _ready(process: subprocess.Popen[bytes], log: Path, url: str) -> bool:
    assert process.poll() is None, log.read_text(errors="replace")
    try:
        return httpx2.get(f"{url}/-/ready", timeout=5, verify=PLAIN).status_code == 200
    except httpx2.TransportError:
        return False
