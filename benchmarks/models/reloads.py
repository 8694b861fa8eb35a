"""Reloads of a model while jobs arrive: `python -m benchmarks.models.reloads [--write]`.

Jobs arrive at a fixed rate, whether or not earlier ones have ended. Meanwhile the model is loaded
again and again; a reload begins when only the processes of the one before serve. Each step of the
handler adds its process to the answer, so an answer by two of them is found. The same load without
reloads is measured before, as the machine may be busy with something else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Final

from benchmarks.common.tables import Table, write_tables
from headrace import AsyncClient
from headrace.client.models import Job
from tests.harness.servers.api_processes import api_processes
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Worker, celery_worker, write_models

RELOADS: Final = 100
RATE: Final = 200
#: How long the load without reloads lasts, in seconds.
CALM_S: Final = 30.0
#: How long the device is busy with a batch, and what a job may wait besides.
BATCH_MS: Final = 10.0
ALLOWED_MS: Final = 50.0
HANDLER: Final = f"""
import os
import time

from headrace import Handler


class Steps(Handler):
    def preprocess(self, items):
        return [[os.getpid()] for _ in items]

    def inference(self, items):
        time.sleep({BATCH_MS / 1000})
        return [[*item, os.getpid()] for item in items]

    def postprocess(self, items):
        return [[*item, os.getpid()] for item in items]
"""


@dataclass(frozen=True)
class Outcome:
    """What became of the jobs of one phase.

    Attributes:
        jobs: how many there were.
        lost: those that did not succeed.
        mixed: those whose steps ran in different processes.
        again: those that ran more than once.
        late: those that waited longer than a batch and ALLOWED_MS.
        processes: how many processes answered.
        waits_ms: the time of each from its arrival until its batch began.
    """

    jobs: int
    lost: list[str]
    mixed: list[str]
    again: list[str]
    late: int
    processes: int
    waits_ms: list[float]

    @classmethod
    def of(cls, jobs: list[Job]) -> Outcome:
        """Judge ended jobs."""
        good = [job for job in jobs if job.succeeded]
        waits_ms = [_waited_ms(job) for job in good]
        return cls(
            jobs=len(jobs),
            lost=[job.id for job in jobs if not job.succeeded],
            mixed=[job.id for job in good if len(set(job.value)) != 1],
            again=[job.id for job in good if job.attempts != 1],
            late=sum(wait_ms > BATCH_MS + ALLOWED_MS for wait_ms in waits_ms),
            processes=len({pid for job in good for pid in job.value}),
            waits_ms=waits_ms,
        )

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table's row."""
        cut = quantiles(self.waits_ms, n=1000, method="inclusive")
        waits = (cut[499], cut[989], cut[998], max(self.waits_ms))
        counts = (self.jobs, len(self.lost), len(self.mixed), len(self.again), self.late)
        return (*(f"{n:,}" for n in counts), *(f"{ms:.1f}" for ms in waits))


def _waited_ms(job: Job) -> float:
    timings = job.timings or {}
    return sum(timings.get(name, 0.0) for name in ("queued", "hold", "device_wait"))


@dataclass
class Site:
    """A worker with one model, and a client."""

    worker: Worker
    client: AsyncClient

    async def under_load(self, phase: asyncio.Task[None]) -> Outcome:
        """Submit jobs until a task has ended; return their outcome."""
        clock, due = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
        submits: list[asyncio.Future[Job]] = []
        while not phase.done():
            submits.append(asyncio.ensure_future(self.client.submit("steps", len(submits))))
            due += 1 / RATE
            await asyncio.sleep(max(0.0, due - clock()))
        await phase
        jobs = [await submit for submit in submits]
        return Outcome.of([await self.client.wait(job.id) for job in jobs])

    async def reload(self, times: int) -> None:
        """Reload the model this often."""
        for _ in range(times):
            before = set(self.worker.model_pids())
            await self.client.reload_model("steps")
            new_ones_serve = partial(self._only_new, before)
            await asyncio.to_thread(wait_until, new_ones_serve, "the new processes serve")

    def _only_new(self, before: set[int]) -> bool:
        now = set(self.worker.model_pids())
        return bool(now) and not now & before


@contextmanager
def site() -> Iterator[Site]:
    """Run Redis, an API process and a worker."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "steps.py").write_text(HANDLER)
        models = write_models(folder, steps={"handler": "steps.py"})
        server = stack.enter_context(redis_server())
        api = stack.enter_context(
            api_processes(folder / "api", server.url, 1, "--models", str(models))
        )
        worker = stack.enter_context(celery_worker(server.url, models, folder, arguments=()))
        worker.wait_ready("steps")
        yield Site(worker, AsyncClient(f"http://127.0.0.1:{api.port}"))


async def measure(running: Site, reloads: int, calm_s: float) -> tuple[Outcome, Outcome]:
    """Return the outcome of the load alone, and that with reloads."""
    async with running.client:
        calm = await running.under_load(asyncio.ensure_future(asyncio.sleep(calm_s)))
        return calm, await running.under_load(asyncio.ensure_future(running.reload(reloads)))


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--reloads", type=int, default=RELOADS)
    options = parser.parse_args()
    with site() as running:
        calm, reloaded = asyncio.run(measure(running, options.reloads, CALM_S))
    table = Table(
        "", "jobs", "lost", "mixed", "twice", f"over {BATCH_MS + ALLOWED_MS:.0f} ms",
        "p50 ms", "p99 ms", "p99.9 ms", "most ms",
    )  # fmt: skip
    table.add("no reload", *calm.cells())
    table.add(f"{options.reloads} reloads", *reloaded.cells())
    if options.write:
        text = f"{RATE} jobs a second; batches of {BATCH_MS:g} ms; load {os.getloadavg()[0]:.1f}."
        write_tables("reloads", text, table)


if __name__ == "__main__":
    main()
