"""The two servers, started alike: by their command, with the same files and options."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar

import psutil

from headrace.server.ports import free_port
from tests.harness.wait import wait_until

ROOT: Final = Path(__file__).parents[4]
#: Where `make torchserve` installs the real one.
VENV: Final = ROOT / ".venv-torchserve"
TORCHSERVE: Final = VENV / "bin/torchserve"
ARCHIVER: Final = VENV / "bin/torch-model-archiver"
OURS: Final = (sys.executable, "-m", "headrace", "torchserve")
#: What both write when they serve.
STARTED: Final = "Model server started."
#: A machine that runs much else has taken a minute and a half to import torch and captum.
START_S: Final = 300
#: In values of a configuration: the server's folder.
FOLDER: Final = "$FOLDER"
#: Has TorchServe's Python processes import less, as `sitecustomize.py` there says.
_LEAN: Final = {"PYTHONPATH": str(Path(__file__).parent / "torchserve_python")}
_UNIX: Final = "unix:"
_NO_TOKENS: Final = "--disable-token-auth"
STOP_S: Final = 30
ANSWER_S: Final = 600
#: How long a request is repeated until it has its status.
UNTIL_S: Final = 120

S = TypeVar("S")
T = TypeVar("T")
Port = Literal["inference", "management", "metrics"]
Headers = Mapping[str, str]
_Start = Callable[..., AbstractContextManager["Server"]]
#: How answers are compared, in order. By form, as their status and content type suggest. By the
#: members of their JSON. By status. By the first digit of the status. As metrics. As OpenAPI.
Look = Literal["", "shape", "status", "class", "text", "described"]


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
        settles: both are asked again until the answers are alike.
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
    settles: bool = False
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


class _Connection(http.client.HTTPConnection):
    """A connection to a port, or to a Unix socket.

    Attributes:
        path: that of the socket.
    """

    path: str = ""

    def connect(self) -> None:
        if not self.path:
            return super().connect()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        return self.sock.connect(self.path)


@dataclass
class Server:
    """A running server.

    Attributes:
        ports: the ports of its interfaces.
        sockets: the Unix sockets of those that have no port.
        folder: its folder: current directory, logs and temporary files.
        process: its first process.
        real: it is TorchServe.
    """

    ports: Mapping[Port, int]
    sockets: Mapping[Port, str]
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

    def wait_loaded(self, models: Sequence[str], headers: Headers | None = None) -> None:
        """Wait until all workers of some models are ready."""

        def loaded(model: str) -> bool:
            ask = Ask("GET", f"/models/{model}", headers=headers or {}, port="management")
            (answer,) = self.ask(ask)
            if answer.status != 200:
                return False
            (shown,) = json.loads(answer.body)
            workers = [one["status"] for one in shown["workers"]]
            return len(workers) >= max(1, shown["minWorkers"]) and set(workers) == {"READY"}

        wait_until(lambda: all(map(loaded, models)), "the models are loaded", START_S)

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
        connection = _Connection("127.0.0.1", self.ports[ask.port], timeout=timeout_s)
        connection.path = self.sockets.get(ask.port, "")
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


Both = tuple[Server, Server]


def in_both(both: Both, do: Callable[[Server], T]) -> tuple[T, T]:
    """Do something with both servers at once."""
    with ThreadPoolExecutor(2) as pool:
        theirs, ours = pool.map(do, both)
    return theirs, ours


@contextmanager
def together(
    enter: Callable[[S], AbstractContextManager[T]], both: tuple[S, S]
) -> Iterator[tuple[T, T]]:
    """Enter a context for each of two at once, and leave both at once."""
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        sides = [(pool, ExitStack(), of) for pool, of in zip((one, other), both, strict=True)]
        try:
            entered = [pool.submit(stack.enter_context, enter(of)) for pool, stack, of in sides]
            yield entered[0].result(), entered[1].result()
        finally:
            for left in [pool.submit(stack.close) for pool, stack, _ in sides]:
                left.result()


@contextmanager
def pair(
    store: Path, models: Sequence[str], config: Mapping[str, str], *flags: str
) -> Iterator[Both]:
    """TorchServe and Headrace, started alike and at once; the models are loaded in both."""
    starts: tuple[_Start, _Start] = (partial(theirs, variables=_LEAN), ours)
    with together(lambda start: start(store, models, config, *flags), starts) as both:
        yield both


def properties(ports: Mapping[Port, int], **more: str) -> str:
    """The text of a `config.properties`."""
    lines = {f"{name}_address": f"http://127.0.0.1:{port}" for name, port in ports.items()}
    return "".join(f"{name}={value}\n" for name, value in {**lines, **more}.items())


@contextmanager
def theirs(
    store: Path,
    models: Sequence[str],
    config: Mapping[str, str],
    *flags: str,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """The real TorchServe, with further variables of its environment."""
    own = {
        "grpc_inference_port": str(free_port()),
        "grpc_management_port": str(free_port()),
        "initial_worker_port": str(free_port()),
        "vmargs": "-Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    command = (str(TORCHSERVE),)
    with _serve(command, store, models, {**own, **config}, flags, variables or {}) as server:
        yield server


@contextmanager
def ours(
    store: Path, models: Sequence[str], config: Mapping[str, str], *flags: str
) -> Iterator[Server]:
    """Headrace, started as TorchServe."""
    with _serve(OURS, store, models, config, flags, {}) as server:
        yield server


@contextmanager
def _serve(
    command: Sequence[str],
    store: Path,
    models: Sequence[str],
    config: Mapping[str, str],
    flags: Sequence[str],
    variables: Mapping[str, str],
) -> Iterator[Server]:
    ports: dict[Port, int] = {
        "inference": free_port(),
        "management": free_port(),
        "metrics": free_port(),
    }
    # The path of a worker's socket has at most 108 characters, so the folder is not pytest's.
    with tempfile.TemporaryDirectory(prefix="compat") as name:
        folder = Path(name)
        own = {key: value.replace(FOLDER, name) for key, value in config.items()}
        (folder / "config.properties").write_text(properties(ports, **own))
        addresses = {port: own.get(f"{port}_address", "") for port in ports}
        sockets = {p: at.removeprefix(_UNIX) for p, at in addresses.items() if at.startswith(_UNIX)}
        start = [*command, "--foreground", "--model-store", str(store), *flags]
        start += ["--ts-config", str(folder / "config.properties")]
        if models:
            start += ["--models", *models]
        with (folder / "output.log").open("wb") as log:
            process = subprocess.Popen(
                start,
                cwd=folder,
                env={**environ(folder), **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        server = Server(ports, sockets, folder, process, real=command != OURS)
        try:
            wait_until(lambda: _started(server), f"{command[0]} serves", START_S)
            headers = {} if _NO_TOKENS in flags else {"Authorization": "Bearer {management}"}
            server.wait_loaded([_model(one) for one in models], headers)
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


def _model(given: str) -> str:
    """The name of a model of `--models`: `name=file`, or a file that is called like it."""
    name, _, file = given.rpartition("=")
    return name or file.removesuffix(".mar")


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
