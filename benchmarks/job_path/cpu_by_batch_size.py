"""CPU time of each process per job, by batch size.

    python -m benchmarks.job_path.cpu_by_batch_size

A backlog of `echo` jobs is drained at 1, 8, 32 and 128 jobs a batch. The figures are CPU per job:
of the worker (claim, batch, frames, settle), of the model process, and of Redis with AOF everysec.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.common.systems import DURABLE, Cpu, as_embedded, backlog_drained
from benchmarks.common.tables import Table, write_tables
from headrace.redis.keys import lease, queue_name
from tests.harness.processes.processes import suspend
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

BATCH_SIZES: Final = (1, 8, 32, 128)


@dataclass
class Site:
    """A worker with a model of each batch size."""

    server: RedisServer
    worker: Worker
    client: Client

    def drain(self, size: int, jobs: int) -> tuple[float, dict[str, float]]:
        """Return jobs per second, and microseconds of CPU per job by process."""
        return self.drain_model(f"of{size}", jobs)

    def drain_model(self, model: str, jobs: int, **others: int) -> tuple[float, dict[str, float]]:
        """Do the same for a model by its name, and include other processes."""
        server = self.server
        assert server.process is not None
        states = self.worker.states()
        cpu = Cpu({
            "worker": [self.worker.pid],
            "model": states[model]["pids"],
            "redis": [server.process.pid],
            **{name: [pid] for name, pid in others.items()},
        })  # fmt: skip
        suspend(self.worker.pid)
        try:
            self.client.submit(model, *({"x": number} for number in range(jobs)))
            cpu.start()
        finally:
            os.kill(self.worker.pid, signal.SIGCONT)
        took_s = backlog_drained(server, queue_name(model))
        leased = lease(queue_name(model))
        wait_until(
            lambda: not self.client.redis.zcard(leased), "the last job has ended", timeout_s=60
        )
        spent = {name: seconds * 1000 for name, seconds in cpu.per_1000(jobs).items()}
        return jobs / took_s, spent


@contextmanager
def site(sizes: tuple[int, ...] = BATCH_SIZES) -> Iterator[Site]:
    """Redis as `headrace up` runs it, and a worker with a model of each size."""
    with (
        tempfile.TemporaryDirectory() as name,
        redis_server(*DURABLE, environ=as_embedded()) as server,
    ):
        folder = Path(name)
        models = {
            f"of{size}": {"handler": "echo", "max_batch_size": size, "max_queue_depth": 1_000_000}
            for size in sizes
        }
        path = write_models(folder, **models)
        with (
            celery_worker(server.url, path, folder, arguments=()) as worker,
            Client(server.url, path) as client,
        ):
            worker.wait_ready(*models)
            yield Site(server, worker, client)


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument(
        "--jobs", type=int, default=20_000, help="jobs of a drain; a fifth of them in batches of 1"
    )
    options = parser.parse_args()
    table = Table("jobs in a batch", "worker, µs of CPU a job", "model process", "redis", "jobs/s")
    with site() as running:
        for size in BATCH_SIZES:
            jobs = max(1, options.jobs // (5 if size == 1 else 1))
            rate, spent = running.drain(size, jobs)
            cells = (f"{spent[name]:.0f}" for name in ("worker", "model", "redis"))
            table.add(f"{size}", *cells, f"{rate:,.0f}")
    if options.write:
        write_tables("drains", f"drains of {options.jobs:,} jobs, of batches of 1 a fifth.", table)


if __name__ == "__main__":
    main()
