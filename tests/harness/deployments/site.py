"""A site: a Redis, a worker, and one or two APIs, each a real one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config.model.catalog import load_catalog
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import RedisServer, nothing_leaks, redis_server
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models


@dataclass
class Site:
    """A running site, with a client of its queues."""

    redis: RedisServer
    api: ApiServer
    worker: Worker
    client: Client
    folder: Path

    def submit(self, value: Any, model: str = "m", **options: Any) -> str:
        (job_id,) = self.client.submit(model, value, **options)
        return job_id

    def shown(self, job_id: str) -> dict[str, Any]:
        return self.api.job(job_id)

    def ended(self, job_id: str) -> dict[str, Any]:
        return self.api.ended(job_id)

    def stream(self, job_id: str) -> str:
        return f"{self.api.url}/api/v1/jobs/{job_id}/stream"


@contextmanager
def running(
    folder: Path, models: Mapping[str, Mapping[str, Any]], **environ: str
) -> Iterator[Site]:
    """A site with these models, all of them loaded; `environ` is for its worker.

    A key that is left without a TTL fails the test.
    """
    path = write_models(folder, **models)
    with (
        redis_server() as server,
        celery_worker(server.url, path, folder, environ=environ) as worker,
        Client(server.url, path) as client,
        api_server(server.url, load_catalog(path)) as api,
    ):
        worker.wait_ready(*models)
        yield Site(server, api, worker, client, folder)
        nothing_leaks(client.redis)


@contextmanager
def another_api(site: Site) -> Iterator[ApiServer]:
    """A second API of the same site."""
    with api_server(site.redis.url, load_catalog(site.folder / "models.yaml")) as api:
        yield api
