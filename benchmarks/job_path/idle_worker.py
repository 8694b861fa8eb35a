"""CPU time of an idle worker, and how soon it claims a job.

    python -m benchmarks.job_path.idle_worker

One worker has 20 `echo` models with four priorities each. First its CPU time is measured without
any jobs. Then lone jobs arrive at a different model each time, from our client or from a stock
Celery client. The time is that from before the push until the model process has the job, according
to the record: the way back is not included.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from celery import Celery

from benchmarks.common.systems import core_shares, cpu_s
from headrace.jobs.ids import new_id
from headrace.redis import keys
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

MODELS = 20
PRIORITIES = (0, 3, 6, 9)


@dataclass
class Site:
    """A worker with its own Redis, and clients of both kinds."""

    server: RedisServer
    worker: Worker
    client: Client
    stock: Celery


@contextmanager
def site(models: int = MODELS) -> Iterator[Site]:
    names = [f"m{n:02}" for n in range(models)]
    with tempfile.TemporaryDirectory() as name, redis_server() as server:
        folder = Path(name)
        path = write_models(folder, **{name: {"handler": "echo"} for name in names})
        with (
            celery_worker(server.url, path, folder, arguments=()) as worker,
            Client(server.url, path) as client,
            Celery("stock", broker=server.url, backend=server.url) as stock,
        ):
            worker.wait_ready(*names, timeout_s=120)
            yield Site(server, worker, client, stock)


def idle_share(site: Site, seconds: float) -> tuple[float, float, float]:
    """Return percentages of a core: the worker, all its model processes, and Redis."""
    server = site.server.process
    assert server is not None
    groups = [[site.worker.pid], site.worker.model_pids(), [server.pid]]
    worker, processes, redis = core_shares(groups, seconds)
    return worker, processes, redis


def stock_message(site: Site, model: str) -> tuple[str, bytes]:
    """Return id and message of a stock client, from a queue without a worker."""
    job_id, queue = new_id(), "unserved"
    arguments = {"model": model, "input": 1}
    site.stock.send_task(keys.TASK_NAME, kwargs=arguments, task_id=job_id, queue=queue)
    return job_id, site.client.redis.rpop(queue)


def woken_ms(site: Site, number: int, *, stock: bool) -> float:
    """Submit a lone job; return the milliseconds until its batch was sent to the process."""
    models = list(site.client.catalog.models)
    model, priority = models[number % len(models)], PRIORITIES[number % len(PRIORITIES)]
    if stock:
        job_id, raw = stock_message(site, model)
        pushed_at = time.time()
        site.client.redis.lpush(keys.step_key(keys.queue_name(model), priority), raw)
    else:
        pushed_at = time.time()
        (job_id,) = site.client.submit(model, number, priority=priority)
    (job,) = site.client.wait(job_id)
    return (job.started_us / 1e6 - pushed_at) * 1000


def summary(name: str, found: list[float]) -> str:
    cut = quantiles(found, n=100)
    return f"{name:28} p50 {cut[49]:5.2f}  p90 {cut[89]:5.2f}  p99 {cut[98]:5.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--jobs", type=int, default=200)
    arguments: Any = parser.parse_args()
    with site() as running:
        worker, processes, redis = idle_share(running, arguments.seconds)
        print(f"{MODELS} models, {len(PRIORITIES)} priorities each, {os.cpu_count()} cores")
        print(f"idle, % of a core: worker {worker:.2f}, its {MODELS} model processes "
              f"{processes:.2f}, Redis {redis:.2f}")  # fmt: skip
        for stock, name in ((False, "job of a submit"), (True, "job of a stock client")):
            for number in range(20):
                woken_ms(running, number, stock=stock)
            found, spent_s = [], cpu_s(running.worker.pid)
            for number in range(arguments.jobs):
                found.append(woken_ms(running, number, stock=stock))
                time.sleep(0.02)  # the worker becomes idle again
            spent_s = cpu_s(running.worker.pid) - spent_s
            print(
                f"{summary(name, found)}, worker {spent_s / arguments.jobs * 1000:.2f} ms CPU each"
            )


if __name__ == "__main__":
    main()
