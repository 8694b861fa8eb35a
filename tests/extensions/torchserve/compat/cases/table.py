"""What the scenarios are written with; they are in the modules beside this one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from tests.extensions.torchserve.compat.archives import ARCHIVES
from tests.extensions.torchserve.compat.servers import Ask

JSON: Final = {"Content-Type": "application/json"}
TEXT: Final = {"Content-Type": "text/plain"}
BINARY: Final = {"Content-Type": "application/octet-stream"}
FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
BOUNDARY: Final = "compat-boundary"
MULTIPART: Final = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
#: Limits of both servers, small enough to be reached.
LIMIT: Final = 100_000
QUEUE: Final = 4
CONFIG: Final = {
    "job_queue_size": str(QUEUE),
    "max_request_size": str(LIMIT),
    "max_response_size": str(LIMIT),
    "metrics_mode": "prometheus",
    "install_py_dep_per_model": "true",
    "default_workers_per_model": "1",
    "number_of_netty_threads": "4",
    # A machine that is busy takes long to start a worker.
    "default_startup_timeout": "600",
    "default_response_timeout": "600",
    "unregister_model_timeout": "300",
}


@dataclass(frozen=True)
class Scenario:
    """Requests in order.

    Attributes:
        name: its name among the tests.
        asks: the requests.
        models: names of archives that are registered before.
    """

    name: str
    asks: tuple[Ask, ...]
    models: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def models_of(scenarios: Iterable[Scenario]) -> list[str]:
    """The archives of scenarios, each once."""
    return list(dict.fromkeys(name for one in scenarios for name in one.models))


def predict(model: str, body: bytes = b"", **more: Any) -> Ask:
    return Ask("POST", f"/predictions/{model}", body, **more)


def manage(method: str, path: str, **more: Any) -> Ask:
    return Ask(method, path, port="management", **more)


def register(model: str, *, url: str = "", **params: object) -> Ask:
    """Register an archive and wait for one worker."""
    given = {"url": url or ARCHIVES[model].stored, "initial_workers": 1, "synchronous": "true"}
    return manage("POST", f"/models?{urlencode({**given, **params})}")


def multipart(*parts: tuple[str, str | None, str | None, bytes]) -> bytes:
    """A body of parts: name, file name, content type and value of each."""
    out = b""
    for name, filename, kind, value in parts:
        file = f'; filename="{filename}"' if filename else ""
        out += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n'.encode()
        if kind:
            out += f"Content-Type: {kind}\r\n".encode()
        out += b"\r\n" + value + b"\r\n"
    return out + f"--{BOUNDARY}--\r\n".encode()
