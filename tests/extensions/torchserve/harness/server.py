"""`headrace torchserve` as a user runs it: in a folder, with a model store, in the background."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from extensions.torchserve.server.process import PID_NAME
from extensions.torchserve.server.server import STARTED
from headrace.server.ports import free_port
from headrace.server.supervisor.proc import start_time_ticks
from tests.harness.processes.processes import descendants, gone
from tests.harness.servers.up import ROOT, START_TIMEOUT_S, clean_environment
from tests.harness.wait import wait_until

_HANDLER = """\
from headrace import Handler

class Says(Handler):
    def inference(self, items):
        return [{"says": SAYS, "input": item} for item in items]
"""


def write_archive(
    store: Path,
    name: str,
    version: str = "1.0",
    config: str = "",
    file: str = "",
    handler: str = "handler.py",
) -> Path:
    """Write an archive whose handler needs neither torch nor TorchServe, and returns its version.

    The archive has `handler.py` and `other.py`; `handler` is the one that its manifest names.
    """
    model = {"modelName": name, "modelVersion": version}
    if handler:
        model["handler"] = handler
    if config:
        model["configFile"] = "model-config.yaml"
    path = store / (file or f"{name}.mar")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))
        for member in ("handler.py", "other.py"):
            archive.writestr(member, _HANDLER.replace("SAYS", repr(version)))
        if config:
            archive.writestr("model-config.yaml", config)
    return path


class RunningTorchServe:
    """A folder with a model store, in which the command is run.

    Attributes:
        folder: the working directory.
        store: the model store.
        ports: those of inference, management and metrics.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "model-store"
        self.ports = (free_port(), free_port(), free_port())
        self.output = folder / "output"
        self.temporary = folder / "tmp"
        self.store.mkdir()
        self.temporary.mkdir()

    @property
    def config(self) -> Path:
        return self.folder / "config.properties"

    def write_config(self, *lines: str, scheme: str = "http") -> None:
        names = ("inference", "management", "metrics")
        addresses = [
            f"{name}_address={scheme}://127.0.0.1:{port}"
            for name, port in zip(names, self.ports, strict=True)
        ]
        self.config.write_text("\n".join([*addresses, *lines]))

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        """Run the command; a start returns while the server starts."""
        environ = self._environ(**variables)
        with self.output.open("ab") as output:
            return subprocess.run(
                [sys.executable, "-P", "-m", "headrace", "torchserve", *arguments],
                cwd=self.folder, env=environ, stdout=output, stderr=subprocess.STDOUT,
                timeout=120, check=False,
            )  # fmt: skip

    def script(self, code: str, path: Path) -> str:
        """Run a script of a user in the folder, with a package folder on its path; its output."""
        environ = self._environ(PYTHONPATH=f"{path}:{ROOT}")
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self.folder, env=environ, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=START_TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def _environ(self, **variables: str) -> dict[str, str]:
        theirs = ("TS_", "LOG_LOCATION", "METRICS_LOCATION")
        environ = clean_environment(TMPDIR=str(self.temporary), **variables)
        return {k: v for k, v in environ.items() if k in variables or not k.startswith(theirs)}

    @contextmanager
    def container(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the entry point of the image as its main process, with `torchserve` on the path."""
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        program = programs / "torchserve"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m headrace torchserve "$@"\n')
        program.chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        with self.output.open("ab") as output:
            process = subprocess.Popen(
                [str(ROOT / "deploy/torchserve/entrypoint.sh"), *arguments],
                cwd=self.folder, env=self._environ(PATH=path), stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)

    def says(self, *arguments: str, **variables: str) -> tuple[int, str]:
        """Run a command that ends by itself; return its status and its output."""
        before = len(self.text())
        status = self.run(*arguments, **variables).returncode
        return status, self.text()[before:].strip()

    def start(self, *arguments: str, **variables: str) -> str:
        """Start the server, wait until it has started, and return what it has printed."""
        before = len(self.text())
        status = self.run("--start", "--model-store", str(self.store), *arguments, **variables)
        assert status.returncode == 0, self.text()[before:]
        self.wait_until_started(self.text()[:before], alive=True)
        return self.text()[before:]

    def wait_until_started(self, before: str, *, alive: bool = False) -> None:
        """Wait until the server reports its start, in the output that follows `before`.

        With `alive` its process runs already, and the test fails if that ends.
        """

        def started() -> bool:
            assert not alive or self.pid is not None, self.text()
            return f"\n{STARTED}\n" in self.text().removeprefix(before)

        wait_until(started, "the server has started", START_TIMEOUT_S)

    def stop(self) -> None:
        assert self.says("--stop")[1].endswith("TorchServe has stopped.")

    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    @property
    def pid(self) -> int | None:
        """The process of the server; None if none runs."""
        try:
            pid = int((self.temporary / PID_NAME).read_text())
        except (OSError, ValueError):
            return None
        return pid if start_time_ticks(pid) is not None else None

    def get(self, path: str, interface: int = 0) -> Any:
        """The JSON of an answer."""
        url = f"http://127.0.0.1:{self.ports[interface]}{path}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.loads(answer.read())

    def predict(self, path: str, body: bytes) -> bytes:
        """The body of an answer to a prediction."""
        url = f"http://127.0.0.1:{self.ports[0]}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=90) as answer:
            found: bytes = answer.read()
        return found

    def authorization(self, kind: str) -> dict[str, str]:
        """The header with a token; none if the server has no tokens."""
        path = self.folder / "key_file.json"
        if not path.exists():
            return {}
        return {"Authorization": f"Bearer {json.loads(path.read_text())[kind]['key']}"}

    def submit(self, model: str, value: object, version: str = "") -> Any:
        """Submit a job to the native API, and return its result."""
        place = f"/api/v1/models/{model}{f'/versions/{version}' if version else ''}/jobs?wait=60"
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[0]}{place}",
            json.dumps(value).encode(),
            headers={"Content-Type": "application/json", **self.authorization("inference")},
        )
        with urllib.request.urlopen(request, timeout=90) as answer:
            job = json.loads(answer.read())
        assert job["status"] == "succeeded", job
        return job["result"]

    def post(self, path: str, body: bytes = b"", port: int = 0, token: str = "") -> tuple[int, str]:
        """The status of an answer, and the type of its error."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[port]}{path}", body, method="POST",
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())["type"]

    @property
    def snapshots(self) -> list[Path]:
        return sorted((self.folder / "logs" / "config").glob("*.cfg"))


@contextmanager
def torchserve_folder(folder: Path) -> Iterator[RunningTorchServe]:
    """A folder in which a test starts servers; one that still runs at the end is killed."""
    folder.mkdir(exist_ok=True)
    running = RunningTorchServe(folder)
    try:
        yield running
    finally:
        pid = running.pid
        if pid is not None:
            below = descendants(pid)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: gone(pid, *below), "the server and all below it have ended")
