"""The batching policy against a fixed window: `python -m benchmarks.batching.policy [--write]`.

Two workers, each with its own Redis, differ only in the policy (fixed_window_app.py). They take the
same arrivals in turn. Jobs arrive at random moments (Poisson, seeded), at a share of the model's
highest rate, which is measured first. The model sleeps as long as a device would take. Times are
from submit to end, by the record.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.common.tables import Table, write_tables
from headrace.jobs.job import Job
from headrace.redis.clock import US_PER_S
from tests.harness.clients.batch_models import BatchLog
from tests.harness.servers.redis_servers import redis_server
from tests.harness.workers.worker import Client, celery_worker, write_models

FIXED_S: Final = 0.020
ITEM_S: Final = 0.001
SIZE: Final = 16
WINDOW_MS: Final = 20
LOADS: Final = (0.05, 0.5, 0.95)
APPS: Final = {
    "policy": "workers.celery_app",
    "fixed window": "benchmarks.batching.fixed_window_app",
}


@dataclass
class Site:
    """A worker with one of the policies, and the log of its batches."""

    client: Client
    log: BatchLog

    def full_rate(self, batches: int) -> float:
        """Return jobs per second while full batches wait all the time."""
        jobs = self.client.wait(*self.client.submit("paced", *range(batches * SIZE)))
        ended = sorted(job.ended_us for job in jobs)
        # A worker that stood still settles several batches at once.
        return (len(jobs) - SIZE) / max(1, ended[-1] - ended[SIZE - 1]) * US_PER_S


@contextmanager
def sites() -> Iterator[dict[str, Site]]:
    """Run a worker of each policy."""
    with ExitStack() as stack:
        made = {}
        for name, app in APPS.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = stack.enter_context(redis_server())
            log = BatchLog(folder)
            model = log.model(
                pause_s=FIXED_S, item_s=ITEM_S, max_batch_size=SIZE,
                max_batch_delay_ms=WINDOW_MS, max_queue_depth=1_000_000,
            )  # fmt: skip
            path = write_models(folder, paced=model)
            worker = stack.enter_context(
                celery_worker(server.url, path, folder, app=app, arguments=())
            )
            worker.wait_ready("paced")
            made[name] = Site(stack.enter_context(Client(server.url, path)), log)
        yield made


@dataclass
class Result:
    """The result of all runs at one load."""

    ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    batches: int = 0

    @property
    def rate(self) -> float:
        """Jobs per second that ended, the median of the runs."""
        return statistics.median(self.rates)

    @property
    def size(self) -> float:
        """The average batch size."""
        return len(self.ms) / self.batches

    def percentile(self, percent: int) -> float:
        """Return a percentile of the milliseconds from submit to end."""
        return statistics.quantiles(self.ms, n=100)[percent - 1]

    def add(self, jobs: list[Job], batches: int) -> None:
        """Add a run."""
        self.ms += [(job.ended_us - job.created_us) / 1000 for job in jobs]
        took_us = max(job.ended_us for job in jobs) - min(job.created_us for job in jobs)
        self.rates.append(len(jobs) / took_us * US_PER_S)
        self.batches += batches


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Return the seconds at which jobs arrive, at least two."""
    rng, moments = random.Random(seed), [0.0]
    while moments[-1] < seconds or len(moments) < 2:
        moments.append(moments[-1] + rng.expovariate(rate))
    return moments


def offer(site: Site, moments: list[float]) -> tuple[list[Job], int]:
    """Submit jobs at these moments and wait for them; return them and the number of batches."""
    ids: list[str] = []
    before, began = len(site.log.lines()), time.perf_counter()
    while len(ids) < len(moments):
        time.sleep(max(0.0, began + moments[len(ids)] - time.perf_counter()))
        now = time.perf_counter() - began
        late = len([moment for moment in moments[len(ids) + 1 :] if moment <= now])
        ids += site.client.submit("paced", *range(1 + late))
    jobs = site.client.wait(*ids, timeout_s=120)
    failed = [job for job in jobs if job.result_json is None]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(jobs)} jobs have no result: {failed[0]}")
    return jobs, len(site.log.lines()) - before


def measure(
    running: dict[str, Site], rate: float, seconds: float, rounds: int
) -> dict[str, Result]:
    """Run rounds of the same arrivals for each policy; the first of a round alternates."""
    found = {name: Result() for name in running}
    for number in range(rounds):
        moments = arrivals(rate, seconds, number)
        for name in list(running)[:: -1 if number % 2 else 1]:
            found[name].add(*offer(running[name], moments))
    return found


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--seconds", type=float, default=5, help="seconds of arrivals in a run")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with sites() as running:
        best = {name: site.full_rate(40) for name, site in running.items()}
        description = (
            f"a batch of n takes {FIXED_S * 1000:g} + {ITEM_S * 1000:g} n ms, {SIZE} at most; "
            f"max_batch_delay_ms {WINDOW_MS}; with a full queue "
            + ", ".join(f"{name} {rate:.0f} a second" for name, rate in best.items())
            + f"; {options.rounds} runs of {options.seconds:g} s each."
        )
        print(description)
        table = Table(
            "load, policy", "offered/s", "ended/s", "p50 ms", "p99 ms", "jobs in a batch",
            "p50, p99 to the window's",
        )  # fmt: skip
        for load in LOADS:
            offered = load * best["policy"]
            found = measure(running, offered, options.seconds, options.rounds)
            base = found["fixed window"]
            for name, one in found.items():
                ratios = ", ".join(
                    f"{one.percentile(at) / base.percentile(at):.2f}" for at in (50, 99)
                )
                table.add(
                    f"{load:.0%}, {name}", f"{offered:.0f}", f"{one.rate:.0f}",
                    f"{one.percentile(50):.1f}", f"{one.percentile(99):.1f}", f"{one.size:.1f}",
                    ratios,
                )  # fmt: skip
    if options.write:
        write_tables("policy", description, table)


if __name__ == "__main__":
    main()
