"""The two servers, started alike: by their command, with the same files and options."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import psutil

from headrace.server.ports import free_port
from tests.harness.wait import wait_until

ROOT: Final = Path(__file__).parents[2]
#: Where `make torchserve` installs the real one.
VENV: Final = ROOT / ".venv-torchserve"
TORCHSERVE: Final = VENV / "bin/torchserve"
ARCHIVER: Final = VENV / "bin/torch-model-archiver"
OURS: Final = (sys.executable, "-m", "headrace", "torchserve")
#: What both write when they serve.
STARTED: Final = "Model server started."
#: For a machine that runs much else: to import torch and captum has taken a minute and a half.
START_S: Final = 300
STOP_S: Final = 30
ANSWER_S: Final = 600
#: How long a request is repeated until it has its status.
UNTIL_S: Final = 120

Port = Literal["inference", "management", "metrics"]
Headers = Mapping[str, str]
#: How answers are compared: by form, as their status and content type suggest; by the members of
#: their JSON; by status; by its first digit; as metrics.
Look = Literal["", "shape", "status", "class", "text"]


def missing() -> str:
    """What the real server lacks on this machine, and how to get it; "" for nothing."""
    if shutil.which("java") is None:
        return "there is no java; on Debian: apt install openjdk-17-jre-headless"
    if not TORCHSERVE.exists():
        return f"there is no {TORCHSERVE.relative_to(ROOT)}; run make torchserve"
    return ""


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
        method, path, body, headers: as they are sent; `{inference}` in the value of a header is
            that key of the server's key_file.json.
        port: the interface to which it is sent.
        times: how many of it are sent at the same moment.
        unanswered_s: TorchServe gives no answer, and is waited for so long; its status is 0.
        until: repeat the request until it has this status.
        look: how the answers are compared.
        differs: the name of the difference in the documentation, if the answers differ on purpose.
    """

    method: str
    path: str
    body: bytes = b""
    headers: Headers = field(default_factory=dict)
    port: Port = "inference"
    times: int = 1
    unanswered_s: float = 0
    until: int = 0
    look: Look = ""
    differs: str = ""

    def __str__(self) -> str:
        shown = f" {self.body[:40]!r}" if self.body else ""
        kind = next((v for n, v in self.headers.items() if n.lower() == "content-type"), "")
        return f"{self.method} {self.port}:{self.path}{f' ({kind})' if kind else ''}{shown}"


@dataclass(frozen=True)
class Answer:
    """A response; status 0 for none."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """The value of a header."""
        return next((value for one, value in self.headers if one.lower() == name), None)


@dataclass
class Server:
    """A running server.

    Attributes:
        ports: the ports of its interfaces.
        folder: its folder: current directory, logs and temporary files.
        process: its first process.
        real: it is TorchServe.
    """

    ports: Mapping[Port, int]
    folder: Path
    process: subprocess.Popen[bytes]
    real: bool

    @property
    def log(self) -> str:
        """What it has written to its output."""
        return (self.folder / "output.log").read_text(errors="replace")

    def url(self, port: Port = "inference") -> str:
        """The URL of an interface."""
        return f"http://127.0.0.1:{self.ports[port]}"

    def _with_key(self, value: str) -> str:
        """A header's value, with a key of key_file.json where it names one: `{inference}`."""
        if "{" not in value:
            return value
        keys = json.loads((self.folder / "key_file.json").read_text())
        return value.format(**{name: one["key"] for name, one in keys.items()})

    def ask(self, ask: Ask) -> list[Answer]:
        """Send a request, as often as it says; return the answers."""
        if ask.times > 1:
            with ThreadPoolExecutor(ask.times) as pool:
                return list(pool.map(self._ask, [ask] * ask.times))
        if ask.until and not (ask.unanswered_s and self.real):
            answers: list[Answer] = []

            def reached() -> bool:
                answers[:] = [self._ask(ask)]
                return answers[0].status == ask.until

            with suppress(AssertionError):  # the comparison tells
                wait_until(reached, str(ask), UNTIL_S, poll_s=0.2)
            return answers
        return [self._ask(ask)]

    def _ask(self, ask: Ask) -> Answer:
        timeout_s = ask.unanswered_s if self.real and ask.unanswered_s else ANSWER_S
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.ports[ask.port], timeout=timeout_s
        )
        try:
            connection.putrequest(ask.method, ask.path, skip_accept_encoding=True)
            for name, value in ask.headers.items():
                connection.putheader(name, self._with_key(value))
            if ask.body or ask.method in ("POST", "PUT", "PATCH"):
                connection.putheader("Content-Length", str(len(ask.body)))
            with suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it reads
                connection.endheaders(ask.body or None)
            response = connection.getresponse()
            body = response.read()
            return Answer(response.status, tuple(response.getheaders()), body)
        except (OSError, http.client.HTTPException):
            return Answer(0)
        finally:
            connection.close()


def properties(ports: Mapping[Port, int], **more: str) -> str:
    """The text of a `config.properties`."""
    lines = {f"{name}_address": f"http://127.0.0.1:{port}" for name, port in ports.items()}
    return "".join(f"{name}={value}\n" for name, value in {**lines, **more}.items())


@contextmanager
def theirs(
    store: Path, models: Sequence[str], config: Mapping[str, str], *flags: str
) -> Iterator[Server]:
    """The real TorchServe."""
    own = {
        "grpc_inference_port": str(free_port()),
        "grpc_management_port": str(free_port()),
        "initial_worker_port": str(free_port()),
        "vmargs": "-Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    with _serve((str(TORCHSERVE),), store, models, {**own, **config}, flags) as server:
        yield server


@contextmanager
def ours(
    store: Path, models: Sequence[str], config: Mapping[str, str], *flags: str
) -> Iterator[Server]:
    """Headrace, started as TorchServe."""
    with _serve(OURS, store, models, config, flags) as server:
        yield server


@contextmanager
def _serve(
    command: Sequence[str],
    store: Path,
    models: Sequence[str],
    config: Mapping[str, str],
    flags: Sequence[str],
) -> Iterator[Server]:
    ports: dict[Port, int] = {
        "inference": free_port(),
        "management": free_port(),
        "metrics": free_port(),
    }
    # The path of a worker's socket has at most 108 characters, so the folder is not pytest's.
    with tempfile.TemporaryDirectory(prefix="compat") as name:
        folder = Path(name)
        (folder / "config.properties").write_text(properties(ports, **config))
        start = [*command, "--start", "--foreground", "--model-store", str(store), "--ncs", *flags]
        start += ["--ts-config", str(folder / "config.properties")]
        if models:
            start += ["--models", *models]
        with (folder / "output.log").open("wb") as log:
            process = subprocess.Popen(
                start,
                cwd=folder,
                env=environ(folder),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        server = Server(ports, folder, process, real=command != OURS)
        try:
            wait_until(lambda: _started(server), f"{command[0]} serves", START_S)
            yield server
        finally:
            stop(process)


def environ(folder: Path) -> dict[str, str]:
    """The environment of a server, whose files are in a folder."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEADRACE_", "TS_", "REDIS_URL"))
    }
    return {
        **kept,
        "TMPDIR": str(folder),
        "TEMP": str(folder),
        "LOG_LOCATION": str(folder / "logs"),
        "METRICS_LOCATION": str(folder / "logs"),
        "HEADRACE_STATE_DIR": str(folder / "state"),
    }


def _started(server: Server) -> bool:
    if server.process.poll() is not None:
        raise AssertionError(f"it ended with {server.process.returncode}: {server.log[-4000:]}")
    return STARTED in server.log


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server in order, and then all that it has started."""
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        for pid in [*(one.pid for one in family[:1]), process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        _, alive = psutil.wait_procs(family, timeout=STOP_S)
        for one in alive:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    if process.poll() is None:
        process.kill()
        process.wait(STOP_S)
