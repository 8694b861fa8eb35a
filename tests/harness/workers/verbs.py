"""A worker with one model of the handler in handlers/overlapping.py, and what its verbs say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.jobs.job import Job
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models


@dataclass
class Bench:
    """A worker with one model, and what its handler has said."""

    worker: Worker
    client: Client
    folder: Path

    def lines(self) -> list[str]:
        log = self.folder / "verbs.log"
        return log.read_text().splitlines() if log.exists() else []

    def wait_for(self, *lines: str) -> None:
        wait_until(lambda: set(lines) <= set(self.lines()), f"{lines} are said")

    def gate(self, name: str) -> str:
        return str(self.folder / name)

    def open(self, name: str) -> None:
        (self.folder / name).touch()

    def submit(self, *inputs: dict[str, Any], **options: Any) -> list[str]:
        return self.client.submit("m", *inputs, **options)

    def job(self, job_id: str) -> Job:
        (job,) = self.client.wait(job_id)
        return job


@contextmanager
def bench(
    redis: RedisServer,
    folder: Path,
    handler: str = "Overlapping",
    environ: dict[str, str] | None = None,
    beside: tuple[str, ...] = (),
    **model: Any,
) -> Iterator[Bench]:
    options = {"log": str(folder / "verbs.log")}
    spec = f"{HANDLERS / 'overlapping.py'}:{handler}"
    same = {"handler": spec, "options": options, "max_batch_size": 1, **model}
    path = write_models(folder, **dict.fromkeys(("m", *beside), same))
    with (
        celery_worker(redis.url, path, folder, environ=environ or {}) as worker,
        Client(redis.url, path) as client,
    ):
        worker.wait_ready("m", *beside)
        yield Bench(worker, client, folder)
