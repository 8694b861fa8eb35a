"""Time from kill -9 to the results: `python -m benchmarks.operation.kills [--write]`.

A model process is killed while it runs a batch, and a worker under `headrace up`. The first call of
the handler waits until the kill, so that only the system's time counts. That is the time to notice
the loss, to release the jobs, to start a new process, and to run the jobs. The model has no weights
to load. A job that was lost waits a random time up to `retry_backoff_s` before its next attempt;
here it is 0.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.common.tables import Table, write_tables
from headrace.redis.clock import US_PER_S
from tests.harness.clients.batch_models import BatchLog
from tests.harness.servers.redis_servers import redis_server
from tests.harness.servers.up import running_up
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

SIZE: Final = 32
#: Losses are frequent here, and times must not depend on chance.
KEYS: Final = {"retry_backoff_s": 0, "max_restarts_per_minute": 1000, "max_batch_size": SIZE}


@dataclass
class Site:
    """A worker with one model process; its batches wait for the gate."""

    client: Client
    worker: Worker
    log: BatchLog

    def killed(self, size: int) -> tuple[float, float]:
        """Kill the model process during a batch; return the seconds to the first and the last end.

        Raises:
            RuntimeError: a job has no result.
        """
        self.worker.wait_ready("lost")
        self.log.gate.unlink(missing_ok=True)
        before = len(self.log.lines())
        ids = self.client.submit("lost", *range(size))
        wait_until(lambda: len(self.log.lines()) > before, "the batch runs", timeout_s=60)
        (pid,) = self.worker.model_pids()
        seconds, micros = self.client.redis.time()
        os.kill(pid, signal.SIGKILL)
        self.log.open_gate()
        jobs = self.client.wait(*ids, timeout_s=60)
        without = [job.id for job in jobs if job.result_json is None]
        if without:
            raise RuntimeError(f"{len(without)} of {size} jobs have no result: {without[:3]}")
        killed_us = seconds * US_PER_S + micros
        ended = sorted((job.ended_us - killed_us) / US_PER_S for job in jobs)
        wait_until(
            lambda: self.worker.model_pids() not in ([], [pid]), "the process is running again", 60
        )
        return ended[0], ended[-1]


@contextmanager
def site() -> Iterator[Site]:
    """Run a worker with one model."""
    with tempfile.TemporaryDirectory() as name, redis_server() as server:
        folder = Path(name)
        log = BatchLog(folder)
        path = write_models(folder, lost=log.model(gated=True, **KEYS))
        with (
            celery_worker(server.url, path, folder, arguments=()) as worker,
            Client(server.url, path) as client,
        ):
            yield Site(client, worker, log)


def worker_killed() -> float:
    """Kill the worker of a new `headrace up` during a job; return the seconds to the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = BatchLog(folder)
        path = write_models(folder, lost=log.model(gated=True, **KEYS))
        with running_up(folder, models=path, HEADRACE_LEASE_TTL_S="600") as up:
            job_id = up.submit("lost", "x")
            wait_until(lambda: bool(log.lines()), "the job runs", timeout_s=60)
            pids = up.record()["pids"]
            pid = next(pid for child, pid in pids.items() if child in ("cpu0", "gpu0"))
            started = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            log.open_gate()
            status, job = up.request("GET", f"/api/v1/jobs/{job_id}?wait=20")
            while job["status"] in ("queued", "running"):
                status, job = up.request("GET", f"/api/v1/jobs/{job_id}?wait=20")
            took_s = time.perf_counter() - started
            if job["status"] != "succeeded":
                raise RuntimeError(f"the job has no result: {status} {job}")
            return took_s


def _spread(seconds: list[float]) -> tuple[str, str]:
    return f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f}, {max(seconds):.2f}"


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    table = Table("killed", "p50 s", "least, most s")
    with site() as running:
        alone = [running.killed(1)[1] for _ in range(options.rounds)]
        batches = [running.killed(SIZE) for _ in range(options.rounds)]
    table.add("the model process, one job", *_spread(alone))
    table.add(f"the model process, {SIZE} jobs: first answer", *_spread([a for a, _ in batches]))
    table.add("… last answer, each job alone", *_spread([b for _, b in batches]))
    workers = [worker_killed() for _ in range(options.rounds)]
    table.add("the worker under headrace up, one job", *_spread(workers))
    if options.write:
        write_tables("kills", f"{options.rounds} kills each.", table)


if __name__ == "__main__":
    main()
