"""Online jobs during a flood of offline jobs: `python -m benchmarks.batching.priorities`.

One worker, one device. Online jobs arrive one by one at random moments and use a fifth of the
model's capacity. Then the same again while offline jobs wait all the time: first of the same model,
then of another one on the device. It measures the time from submit to end, by the record. It also
measures how many online jobs waited for a batch that began after their submit, and the most such
batches. On a shared machine these counts show more than times. The model sleeps, so that only the
order is measured.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from headrace.jobs.job import Job
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from tests.harness.clients.batch_models import BatchLog
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, celery_worker, write_models

FIXED_S = 0.010
ITEM_S = 0.0005
SIZE = 16
LOAD = 0.2


@dataclass
class Site:
    """A worker with two models on one device, its client, and the log of its batches."""

    client: Client
    log: BatchLog


@contextmanager
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as name, redis_server() as server:
        folder = Path(name)
        log = BatchLog(folder)
        model = log.model(
            pause_s=FIXED_S, item_s=ITEM_S, max_batch_size=SIZE, max_queue_depth=1_000_000
        )
        path = write_models(folder, online=model, other=model)
        environ = {"HEADRACE_DEVICE_SLOTS": "1"}
        with (
            celery_worker(server.url, path, folder, environ=environ, arguments=()) as worker,
            Client(server.url, path) as client,
        ):
            worker.wait_ready("online", "other")
            yield Site(client, log)


@dataclass(frozen=True)
class Result:
    """The result of one run.

    Attributes:
        online_ms: milliseconds from submit to end of each online job.
        before: for each, how many batches began after its submit and before its own.
        offline_per_s: offline jobs per second that began in the same time.
    """

    online_ms: list[float]
    before: list[int]
    offline_per_s: float

    def percentile(self, percent: int) -> float:
        return quantiles(self.online_ms, n=100)[percent - 1]


def measure(site: Site, jobs: int, flooded: str = "") -> Result:
    """Submit online jobs at random moments, during a flood of offline jobs of `flooded`."""
    client, rng = site.client, random.Random(7)
    gap_s = (FIXED_S + ITEM_S) / LOAD
    if flooded:
        # More than the device can run in this time.
        count = int(2 * jobs * gap_s / (FIXED_S / SIZE + ITEM_S)) + SIZE
        flood = client.submit(flooded, *range(count), priority=keys.OFFLINE_STEP)
        wait_until(lambda: client.job(flood[0]).state.final, "the flood runs")
    began, before = time.perf_counter(), len(ran(site))
    ids = []
    for number in range(jobs):
        ids += client.submit("online", number)
        time.sleep(rng.expovariate(1 / gap_s))
    online = client.wait(*ids)
    took_s, offline = time.perf_counter() - began, len(ran(site)) - before - jobs
    if flooded:
        queue = keys.queue_name(flooded)
        client.redis.delete(keys.step_key(queue, keys.OFFLINE_STEP))  # the rest of the flood
        wait_until(lambda: not client.redis.zcard(keys.lease(queue)), "the flood is over")
    return Result(
        [(job.ended_us - job.created_us) / 1000 for job in online],
        passed_over(site, online),
        offline / took_s,
    )


def passed_over(site: Site, jobs: list[Job]) -> list[int]:
    """Return for each job how many batches began between its submit and its own batch."""
    began = [line.at for line in site.log.lines()]
    own = {job_id: line.at for line in site.log.lines() for job_id in line.ids}
    return [
        bisect_left(began, own[job.id]) - bisect_right(began, job.created_us / US_PER_S)
        for job in jobs
    ]


def ran(site: Site) -> list[str]:
    """Return the jobs that have begun."""
    return [job_id for line in site.log.lines() for job_id in line.ids]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=400, help="online jobs in each run")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"a batch of n takes {FIXED_S * 1000:g} + {ITEM_S * 1000:g} n ms, {SIZE} at most")
    print(
        f"{'offline flood':16} {'p50':>7} {'p99':>7}  {'ratio':>11}  {'behind':>8} {'most':>4}"
        f"  {'offline/s':>9}"
    )
    with site() as running:
        for _ in range(options.rounds):
            calm = measure(running, options.jobs)
            rows = {"none": calm, "same model": measure(running, options.jobs, "online")}
            rows["another model"] = measure(running, options.jobs, "other")
            for name, found in rows.items():
                p50, p99 = found.percentile(50), found.percentile(99)
                ratios = f"{p50 / calm.percentile(50):5.2f} {p99 / calm.percentile(99):5.2f}"
                late = sum(count > 0 for count in found.before) / len(found.before)
                print(
                    f"{name:16} {p50:7.1f} {p99:7.1f}  {ratios}  {late:8.1%} {max(found.before):4}"
                    f"  {found.offline_per_s:9.0f}"
                )


if __name__ == "__main__":
    main()
