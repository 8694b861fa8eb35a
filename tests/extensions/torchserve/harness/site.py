"""TorchServe's URLs on one port, with a worker, a model store and a registry of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from extensions.torchserve.config.settings import TorchServeConfig, write_config
from tests.harness.archives import write_zip
from tests.harness.servers.api_server import ApiServer, registry_server
from tests.harness.workers.worker import Worker, celery_worker, write_models

#: A handler of Headrace, so that no archive needs TorchServe's packages.
ANSWERS = """
from headrace import Handler


class Answers(Handler):
    def initialize(self, context):
        self.version = context.version

    def inference(self, items):
        return [self.version for _ in items]
"""
#: Loads once the file GATE is there; a test replaces GATE by its path in quotes.
GATED = ANSWERS.replace(
    "self.version = context.version",
    "self.version = context.version\n"
    "        import pathlib, time\n"
    "        while not pathlib.Path(GATE).exists():\n"
    "            time.sleep(0.02)",
)


def write_archive(
    path: Path, name: str, code: str = ANSWERS, *, version: str = "1.0", **model: Any
) -> Path:
    """Write an archive with a native handler; further arguments are for its manifest."""
    manifest = {
        "runtime": "python",
        "model": {"modelName": name, "handler": "answers.py", "modelVersion": version, **model},
        "archiverVersion": "0.12.0",
    }
    members = {"MAR-INF/MANIFEST.json": json.dumps(manifest), "answers.py": code}
    return write_zip(path, [(member, text.encode()) for member, text in members.items()])


@dataclass
class TorchServeSite:
    """An API with TorchServe's URLs, a worker and a model store.

    Attributes:
        worker: None if none was asked for.
    """

    folder: Path
    store: Path
    config: TorchServeConfig
    api: ApiServer
    worker: Worker | None = None

    @property
    def http(self) -> httpx2.Client:
        return self.api.http

    def archive(
        self, name: str, code: str = ANSWERS, *, version: str = "1.0", file: str = "", **model: Any
    ) -> str:
        """Write an archive into the store; return its name there."""
        path = self.store / (file or f"{name}.mar")
        return write_archive(path, name, code, version=version, **model).name

    def members(self, file: str, members: Mapping[str, str]) -> str:
        """Write an archive with these members into the store; return its name there."""
        encoded = [(name, text.encode()) for name, text in members.items()]
        write_zip(self.store / file, encoded)
        return file

    def register(self, url: str, **query: Any) -> httpx2.Response:
        """Register a model, by default with one worker."""
        given = {"url": url, "initial_workers": 1, **query}
        return self.http.post("/models", params={k: v for k, v in given.items() if v is not None})

    def described(self, model: str, path: str = "", **query: Any) -> Any:
        """The description of the default version of a model, or of another one."""
        found = self.http.get(f"/models/{model}{path}", params=query)
        assert found.status_code == 200, found.text
        return found.json()[0]

    def names(self) -> list[str]:
        return [model["modelName"] for model in self.http.get("/models").json()["models"]]

    def clear(self) -> None:
        """Unregister all models but that of the models file, and empty the store."""
        for name in self.names():
            if name != "echo":
                found = self.http.delete(f"/api/v1/models/{name}", params={"wait": 30})
                assert found.is_success, found.text
        for path in self.store.iterdir():
            path.unlink() if not path.is_dir() else _remove(path)


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink() if not path.is_dir() else _remove(path)
    folder.rmdir()


@contextmanager
def torchserve_site(
    redis_url: str, folder: Path, *, worker: bool = True, settings: Any = None, **config: Any
) -> Iterator[TorchServeSite]:
    """Serve TorchServe's URLs, without tokens and with the model API unless `config` differs."""
    store = folder / "model-store"
    store.mkdir()
    file = write_models(folder, echo={"handler": "echo"})
    given = {"enable_model_api": True, "disable_token_authorization": True, **config}
    found = TorchServeConfig(**given)
    write_config(folder / "torchserve.properties", found)
    common = {"model_store": store, "state_dir": folder / "state", **(settings or {})}
    with ExitStack() as stack:
        api = stack.enter_context(
            registry_server(redis_url, file, torchserve=folder / "torchserve.properties", **common)
        )
        site = TorchServeSite(folder, store, found, api)
        if worker:
            environ = {
                "PYTHONDONTWRITEBYTECODE": "1",
                **{f"HEADRACE_{name.upper()}": str(value) for name, value in common.items()},
            }
            site.worker = stack.enter_context(
                celery_worker(redis_url, file, folder, environ=environ)
            )
            site.worker.wait_ready("echo")
        yield site
