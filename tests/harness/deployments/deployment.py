"""A deployment of one worker, with a client of each kind, for tests of what lies between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from celery.result import AsyncResult

from headrace.jobs.ids import new_id
from headrace.redis import keys
from tests.harness.clients.celery_client import send, stock_client
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker


@dataclass
class Deployment:
    """One worker, and both kinds of client."""

    url: str
    folder: Path
    worker: Worker
    ours: Client
    app: Celery

    def runs(self) -> list[str]:
        """Ids in the order in which the models tricky and one have run them."""
        log = self.folder / "runs.log"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    def letters(self, model: str = "tricky") -> list[str]:
        """The dead letters of a model's queue."""
        return [
            raw.decode() for raw in self.ours.redis.zrange(keys.dead(keys.queue_name(model)), 0, -1)
        ]

    @contextmanager
    def busy(self) -> Iterator[list[AsyncResult[Any]]]:
        """The model `one` runs the first of these two jobs, and has claimed the second."""
        gate = self.folder / new_id()
        blockers = [send(self.app, "one", {"until": str(gate)}) for _ in range(2)]
        try:
            wait_until(lambda: blockers[0].id in self.runs(), "the model is busy")
            wait_until(lambda: self.ours.redis.llen("headrace.one") == 0, "one more is claimed")
            yield blockers
        finally:
            gate.touch()

    def record_exists(self, job_id: str) -> bool:
        return bool(self.ours.redis.exists(keys.job(job_id)))


@contextmanager
def deployment(shared: SharedDeployment, folder: Path) -> Iterator[Deployment]:
    """The shared one, with the models `tricky` in batches, `one` without, and `echo`."""
    log = {"log": str(folder / "runs.log")}
    models: dict[str, Any] = {
        "tricky": {
            "handler": f"{HANDLERS / 'trouble/tricky.py'}:Tricky",
            "max_batch_size": 8,
            "timeout_s": 30,
            "options": log,
        },
        "one": {
            "handler": f"{HANDLERS / 'gated.py'}:Gated",
            "max_batch_size": 1,
            "max_retries": 1,
            "options": log,
        },
        "echo": {"handler": "echo"},
    }
    with shared.site(folder, models) as site, stock_client(site.redis.url) as app:
        yield Deployment(site.redis.url, folder, site.worker, site.client, app)
