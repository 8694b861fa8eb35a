"""The API on a real uvicorn in a thread of its own, and a client for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from api.app import Application, create_app
from api.process import ApiProcess, server_for
from api.services import Services
from headrace.config.extensions import settings_types
from headrace.config.model.catalog import Catalog, ModelConfig, load_catalog
from headrace.config.settings import Settings
from headrace.registry.catalog import read_declared
from headrace.registry.model import DeclaredModels
from headrace.server.ports import free_port
from tests.harness.http.plain_http import PLAIN
from tests.harness.wait import wait_until


def catalog(**models: dict[str, Any]) -> Catalog:
    """A catalog of these models; each is the built-in echo unless it says otherwise."""
    configs = {
        name: ModelConfig(name=name, **{"handler": "echo", **values})
        for name, values in models.items()
    }
    return Catalog(Path("models.yaml"), configs)


@dataclass
class ApiServer:
    """One API process' worth, in a thread.

    Attributes:
        http: a client that has this server as its base.
    """

    url: str
    redis_url: str
    app: Application
    http: httpx2.Client
    server: ApiProcess

    @property
    def services(self) -> Services:
        services = self.app.services
        assert services is not None, "the server does not run"
        return services

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def connect(self) -> socket.socket:
        """A plain connection for a test that writes its own bytes."""
        return socket.create_connection(("127.0.0.1", self.port), 60)

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as the API shows it."""
        found: dict[str, Any] = self.http.get(f"/api/v1/jobs/{job_id}").json()
        return found

    def ended(self, job_id: str, limit_s: float = 300) -> dict[str, Any]:
        """A job once it has ended."""

        def final() -> bool:
            return self.job(job_id)["status"] not in ("queued", "scheduled", "running")

        wait_until(final, f"{job_id} ends", limit_s)
        return self.job(job_id)


@contextmanager
def registry_server(redis_url: str, file: Path, /, **settings: Any) -> Iterator[ApiServer]:
    """An API that applies a models file to the registry, and lets clients register models."""
    settings = {"model_api": True, **settings}
    with api_server(redis_url, load_catalog(file), read_declared(file), **settings) as server:
        yield server


@contextmanager
def api_server(
    redis_url: str, models: Catalog, declared: DeclaredModels | None = None, /, **settings: Any
) -> Iterator[ApiServer]:
    """Serve until the context ends. The values of extensions are settings too."""
    port = settings.pop("port", None) or free_port()
    names = settings.keys() & settings_types().keys()
    settings["extensions"] = {name: settings.pop(name) for name in names}
    app = create_app(Settings(redis_url=redis_url, port=port, **settings), models, declared)
    server = server_for(app, "127.0.0.1", port, "warning")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    # Of a test that speaks HTTPS, whose own clients look at the certificate.
    secure = app.settings.tls
    url = f"{'https' if secure else 'http'}://127.0.0.1:{port}"
    wait_until(lambda: server.started or not thread.is_alive(), "the API serves")
    try:
        with httpx2.Client(base_url=url, timeout=90, verify=False if secure else PLAIN) as http:
            yield ApiServer(url, redis_url, app, http, server)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the API did not stop"
