"""Those who use the system while it is killed: the SDK's clients, one who cancels, stock Celery."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from headrace import Client
from headrace.client.models import Cancelled
from headrace.redis import keys
from tests.chaos.plan import LOST, Planned
from tests.chaos.system import System
from tests.harness.clients.celery_client import send, stock_client

#: How many inputs `map` takes at a time is a quarter of it: what came before that is submitted.
IN_FLIGHT = 200
THREADS = 6
RETRY_S = 300.0


@dataclass
class Load:
    """Runs the jobs, and keeps what was told of them.

    Attributes:
        ended: for each job that has ended, what is wrong with that; empty where nothing is.
        states: the status that it ended with.
        lost: those that ended as lost with their process.
        cancelled: what each cancel has answered, and when.
    """

    system: System
    jobs: list[Planned]
    ended: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    cancelled: dict[str, tuple[Cancelled, float]] = field(default_factory=dict)
    _to_cancel: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    _failed: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._client = Client(self.system.url, retry_s=RETRY_S)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._client.ready()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._client.close()  # whoever still waits for a job has an error now
        self._thread.join()
        self._client.close()

    def reached(self, share: float) -> bool:
        """Whether that share of the jobs has ended."""
        if self._failed:
            raise AssertionError("a client has failed") from self._failed[0]
        return len(self.ended) >= share * len(self.jobs)

    def open_records(self) -> list[tuple[Planned, Any]]:
        """Jobs that nobody was told the end of, with their records, for the failure's message."""
        client: Any = self.system.server.client()
        with client:
            left = [job for job in self.jobs if job.id not in self.ended]
            return [(job, client.hgetall(keys.job(job.id))) for job in left[:10]]

    def _run(self) -> None:
        groups: dict[tuple[str, int], list[Planned]] = defaultdict(list)
        for job in self.jobs:
            if not job.stock:
                groups[job.model, job.priority].append(job)
        try:
            with ThreadPoolExecutor(THREADS + 2) as threads:
                canceller = threads.submit(self._cancel)
                tasks = [threads.submit(self._stock)]
                tasks += [threads.submit(self._map, jobs) for jobs in groups.values()]
                try:
                    for task in as_completed(tasks):
                        task.result()
                finally:
                    self._to_cancel.put(None)
                canceller.result()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._failed.append(error)

    def _map(self, jobs: list[Planned]) -> None:
        results = self._client.map(
            jobs[0].model, self._inputs(jobs), ids=lambda given: f"chaos-{given['n']}",
            in_flight=IN_FLIGHT, ordered=False, return_errors=True, priority=jobs[0].priority,
        )  # fmt: skip
        for result in results:
            status = result.job.status if result.job is not None else "refused"
            self._note(jobs[result.index], status, result.value, result.error)

    def _inputs(self, jobs: list[Planned]) -> Iterator[dict[str, Any]]:
        for at, job in enumerate(jobs):
            if at >= IN_FLIGHT // 4 and jobs[at - IN_FLIGHT // 4].cancel:
                self._to_cancel.put(jobs[at - IN_FLIGHT // 4].id)
            yield job.input

    def _cancel(self) -> None:
        while (job_id := self._to_cancel.get()) is not None:
            (told,) = self._client.cancel([job_id])
            self.cancelled[job_id] = (told, time.monotonic())

    def _stock(self) -> None:
        jobs = [job for job in self.jobs if job.stock]
        with stock_client(self.system.server.url) as app:
            sent = {job.id: _send(app, job) for job in jobs}
            for job in jobs:
                (seen,) = self._client.status([job.id])
                while seen is None or not seen.ended:
                    # It has a record once it is claimed. What Redis has lost is sent again.
                    if seen is None and self.system.may_be_lost(sent[job.id]):
                        sent[job.id] = _send(app, job)
                    time.sleep(0.1)
                    (seen,) = self._client.status([job.id])
                value = self._client.result(job.id) if seen.succeeded else None
                self._note(job, seen.status, value, seen.error)

    def _note(self, job: Planned, status: str, value: Any, error: Any) -> None:
        code = getattr(error, "code", None) or getattr(error, "type", None)
        self.states[job.id] = status
        if code == LOST:
            self.lost.add(job.id)
        self.ended[job.id] = job.complaint(status, value, code)


def _send(app: Celery, job: Planned) -> float:
    """Send it until that is acknowledged, always under its own id; when it was."""
    while True:
        try:
            send(app, job.model, job.input, task_id=job.id, priority=job.priority, retry=False)
        except (OperationalError, OSError):
            time.sleep(0.1)
        else:
            return time.monotonic()
