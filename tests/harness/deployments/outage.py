"""Two workers and an API behind a proxy in front of Redis, for tests of Redis that goes away."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2

from headrace.config.model.catalog import load_catalog
from headrace.jobs.ids import new_id
from headrace.redis import connection, keys
from headrace.redis.clock import US_PER_S
from tests.harness.fakes.proxy import Proxy, proxy
from tests.harness.http.plain_http import PLAIN
from tests.harness.processes.processes import suspend
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Worker, celery_worker, write_models

LEASE_S = 2.0
QUEUE = keys.queue_name("gated")
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
BATCH = 1
#: What two workers hold at once: a batch that runs and one that is prepared, each.
HELD = 4 * BATCH


@dataclass
class Site:
    """A deployment whose Redis a test may take away.

    Attributes:
        server: the Redis that is the primary at the time.
        path: the proxy, by which workers and API reach it.
    """

    folder: Path
    server: RedisServer
    path: Proxy
    workers: list[Worker]
    api: ApiServer
    threads: ThreadPoolExecutor
    _marks: list[int] = field(default_factory=list)

    def runs(self) -> Counter[str]:
        """How often each job has begun."""
        log = self.folder / "runs.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return Counter(line.split()[0] for line in lines)

    def mark(self) -> None:
        """From here on `told` reads the workers' logs."""
        self._marks = [len(worker.log) for worker in self.workers]

    def told(self, text: str) -> bool:
        """Whether all workers have logged this since `mark`."""
        return all(
            text in worker.log[mark:]
            for worker, mark in zip(self.workers, self._marks, strict=True)
        )

    def submit(self, count: int, gate: Path, padding: int = 0) -> list[str]:
        """Jobs that run until the file `gate` is there; their results are as long as they are."""
        body = {"model": "gated", "input": {"until": str(gate), "padding": "x" * padding}}

        def submitted(job_id: str) -> str:
            # Under its id it may be said again, where Redis took longer than the API waits for it.
            return str(self.api.http.put(f"/api/v1/jobs/{job_id}", json=body).json()["id"])

        ids = [new_id() for _ in range(count)]
        return [wait_until(partial(submitted, job_id), "it is submitted") for job_id in ids]

    def wait(self, job_id: str) -> Future[httpx2.Response]:
        """A long poll for a job, under way."""
        url = f"{self.api.url}/api/v1/jobs/{job_id}?wait=120"
        waiters = self.api.services.waiters
        before = waiters.count
        asked = self.threads.submit(lambda: httpx2.get(url, timeout=180, verify=PLAIN))
        wait_until(lambda: waiters.count > before, "it waits")
        return asked

    @contextmanager
    def at_work(self, padding: int = 0) -> Iterator[tuple[list[str], Path]]:
        """Both workers hold all that they can of these jobs, which run until the gate opens."""
        gate = self.folder / new_id()
        self.mark()
        ids = self.submit(HELD, gate, padding)
        try:
            with self.server.client() as client:
                wait_until(lambda: client.zcard(keys.lease(QUEUE)) == HELD, "all are held", 60)
            wait_until(lambda: len(self.runs().keys() & set(ids)) == HELD // 2, "half runs", 60)
            yield ids, gate
        except BaseException:
            for worker in self.workers:
                print(worker.node, worker.log[-6000:])  # noqa: T201 - shown with the failure
            raise
        finally:
            gate.touch()

    def wait_until_leases_are_over(self, leased_until_us: float, more: int = 1) -> None:
        """Wait until every lease has run out and so many more leases' time has gone by."""
        over_at_s = leased_until_us / US_PER_S + more * LEASE_S
        wait_until(lambda: time.time() > over_at_s, "the leases have run out", 30)

    def leased_until_us(self) -> float:
        """When the last of the leases runs out, unless it is renewed."""
        with self.server.client() as client:
            held: Any = client.zrange(keys.lease(QUEUE), 0, -1, withscores=True)
        return float(max(score for _, score in held))

    def jobs(self, ids: list[str]) -> list[dict[str, Any]]:
        """These jobs, once they have ended."""
        found: dict[str, dict[str, Any]] = {}

        def ended() -> bool:
            for job_id in set(ids) - found.keys():
                url = f"/api/v1/jobs/{job_id}"
                job: dict[str, Any] = self.api.http.get(url, params={"wait": 5}).json()
                if job.get("finished_at"):
                    found[job_id] = job
            return len(found) == len(ids)

        wait_until(ended, "they have ended", 60)
        return [found[job_id] for job_id in ids]

    def assert_each_ran_once(self, ids: list[str]) -> None:
        """All have ended well in their first run, and nobody claimed one a second time."""
        ended = self.jobs(ids)
        assert {job["status"] for job in ended} == {"succeeded"}
        runs = self.runs()
        assert {job_id: runs[job_id] for job_id in ids} == dict.fromkeys(ids, 1)
        assert {job["attempts"] for job in ended} == {1}

    @contextmanager
    def stopped_server(self) -> Iterator[None]:
        """Redis hangs, and all that is sent meanwhile reaches it afterwards."""
        assert self.server.process is not None
        pid = self.server.process.pid
        suspend(pid)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def outage_site(folder: Path) -> Iterator[Site]:
    """A running one."""
    models = write_models(
        folder,
        gated={
            "handler": f"{HANDLERS / 'gated.py'}:Gated",
            "max_batch_size": BATCH,
            "max_retries": 0,
            "options": {"log": str(folder / "runs.log")},
        },
    )
    with ExitStack() as stack:
        server = stack.enter_context(redis_server("valkey9", *DURABLE))
        path = stack.enter_context(proxy(server.port))
        url = f"redis://127.0.0.1:{path.port}/0"
        # The API must notice a cut network within one second.
        with patch.object(connection, "SOCKET_TIMEOUT_S", 1.0):
            api = stack.enter_context(api_server(url, load_catalog(models)))
        environ = {"HEADRACE_LEASE_TTL_S": str(LEASE_S)}
        workers = [
            stack.enter_context(
                celery_worker(url, models, folder, node=f"cpu{n}@test", environ=environ)
            )
            for n in range(2)
        ]
        for worker in workers:
            worker.wait_ready("gated")
        threads = stack.enter_context(ThreadPoolExecutor(4))
        yield Site(folder, server, path, workers, api, threads)
