"""One deployment for all modules of a test process; each registers its models over the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.config.model.options import DEFAULT_VERSION
from tests.harness.deployments.site import Site
from tests.harness.servers.api_server import registry_server
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

#: Keys of the worker, of the registry and of kombu. Others go between two modules.
_KEPT: Final = ("hr:workers", "hr:worker:", "hr:registry", "hr:models", "hr:token", "_kombu.")


class SharedDeployment:
    """A Redis, a worker and an API, started when the first module asks for them.

    One module has it at a time. After a failure the next module gets a new one.
    """

    def __init__(self, folder: Path) -> None:
        #: The server reads the inputs that clients name here.
        self.inputs = folder / "inputs"
        self.inputs.mkdir()
        self._folder = folder
        self._stack = ExitStack()
        self._parts: Site | None = None
        self._kept: Mapping[str, Mapping[str, Any]] = {}

    @contextmanager
    def site(
        self, folder: Path, models: Mapping[str, Mapping[str, Any]], *, keep: bool = False
    ) -> Iterator[Site]:
        """The deployment with these models, all of them loaded, and no other.

        A key that is left without a TTL fails the test.

        Args:
            keep: the models stay loaded for the next module, should it ask for the same ones. Their
                handlers are not in `folder`.
        """
        try:
            parts = self._cleaned(models)
            path = write_models(folder, **models)
            for name, options in models.items():
                if name not in self._kept:
                    _register(parts, folder, name, options)
            parts.worker.wait_ready(*models)
            ready = partial(parts.api.http.get, "/ready", params={"models": "all"})
            wait_until(lambda: ready().is_success, "the API knows that they are loaded")
            with Client(parts.redis.url, path) as client:
                yield Site(parts.redis, parts.api, parts.worker, client, folder)
                nothing_leaks(client.redis)
            self._kept = models
            if not keep:
                self._remove_models(parts)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it."""
        self._parts, self._kept = None, {}
        self._stack.close()

    def _cleaned(self, models: Mapping[str, Mapping[str, Any]]) -> Site:
        """The parts, without the keys of the module before, and its models if they are others."""
        parts = self._parts = self._parts or self._started()
        if self._kept != models:
            self._remove_models(parts)
            wait_until(lambda: _idle(parts.worker), "the models before have ended")
        with parts.redis.client() as client:
            keys: Any = client.keys()
            if old := [key for key in keys if not key.decode().startswith(_KEPT)]:
                client.delete(*old)
        return parts

    def _remove_models(self, parts: Site) -> None:
        for name in self._kept:
            removed = parts.api.http.delete(f"/api/v1/models/{name}")
            assert removed.status_code == 204, removed.text
        self._kept = {}

    def _started(self) -> Site:
        enter = self._stack.enter_context
        server = enter(redis_server())
        path = write_models(self._folder)
        environ = {"OMP_NUM_THREADS": "1", "HEADRACE_INPUT_ROOTS": str(self.inputs)}
        worker = enter(celery_worker(server.url, path, self._folder, environ=environ))
        api = enter(registry_server(server.url, path, input_roots=(self.inputs,)))
        client = enter(Client(server.url, path))
        return Site(server, api, worker, client, self._folder)


def _idle(worker: Worker) -> bool:
    """Whether the worker reports, and has no model."""
    return set(worker.states()) == {""}


def _register(parts: Site, folder: Path, name: str, options: Mapping[str, Any]) -> None:
    """Register a model as its models file in the folder would have it."""
    handler = str(options["handler"])
    if (folder / handler.partition(":")[0]).is_file():
        options = {**options, "handler": f"{folder / handler}"}
    version = options.get("version", DEFAULT_VERSION)
    path = f"/api/v1/models/{name}/versions/{version}"
    put = parts.api.http.put(path, json={"options": dict(options)})
    assert put.is_success, put.text
