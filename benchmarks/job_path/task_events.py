"""The cost of Celery's task events: `python -m benchmarks.job_path.task_events`.

One worker has three `echo` models at batch size 32 that differ only in `events` (`true`, `sampled`,
`false`); a real Flower reads the events. The models are measured in turn, so that other load
affects all three: first a backlog is drained, then 2,000 jobs per second are sent. Flower's CPU
time is counted until it has read all events.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from benchmarks.common.systems import DURABLE, as_embedded
from benchmarks.common.tables import Table, write_tables
from benchmarks.job_path.cpu_by_batch_size import Site
from headrace.redis.keys import lease, queue_name
from tests.harness.monitoring.flower import running_flower
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, celery_worker, write_models

MODES: Final = {"all": True, "sampled": "sampled", "none": False}
PROCESSES: Final = ("worker", "model", "redis", "flower")
#: Flower is idle once it has used less than REST_SHARE of a core for REST_S seconds.
REST_SHARE, REST_S = 0.1, 1.0
#: Seconds between two submits of a paced load.
TICK_S: Final = 0.05


@dataclass
class Watched(Site):
    """A worker with a model of each mode, and Flower."""

    flower: int

    def pids(self) -> dict[str, int]:
        """Return the process ids of worker, Redis and Flower."""
        assert self.server.process is not None
        return {
            "worker": self.worker.pid, "redis": self.server.process.pid, "flower": self.flower,
        }  # fmt: skip

    def drained(self, model: str, jobs: int) -> tuple[float, dict[str, float]]:
        """Return jobs per second, and microseconds of CPU per job by process."""
        before = self.flower_s()
        rate, spent = self.drain_model(model, jobs)
        return rate, {**spent, "flower": (self.flower_s() - before) / jobs * 1e6}

    def paced(self, model: str, per_s: int, seconds: float) -> dict[str, float]:
        """Return shares of a core by process under a load of `per_s` jobs per second."""
        self.flower_s()
        pids = {**self.pids(), "model": self.worker.states()[model]["pids"][0]}
        before = {name: _cpu_s(pid) for name, pid in pids.items()}
        began, sent = time.monotonic(), 0
        while (at := time.monotonic() - began) < seconds:
            due = int(at * per_s) - sent
            if due:
                self.client.submit(model, *range(due))
                sent += due
            time.sleep(TICK_S)
        leased = lease(queue_name(model))
        wait_until(
            lambda: not self.client.redis.llen(queue_name(model))
            and not self.client.redis.zcard(leased),
            "all jobs have ended", timeout_s=120,
        )  # fmt: skip
        self.flower_s()
        return {
            name: (_cpu_s(pid) - before[name]) * per_s / max(1, sent) for name, pid in pids.items()
        }

    def flower_s(self) -> float:
        """Return Flower's CPU seconds, once it has read all events."""
        at, spent = time.monotonic(), _cpu_s(self.flower)
        while True:
            time.sleep(REST_S)
            now, later = time.monotonic(), _cpu_s(self.flower)
            if (later - spent) / (now - at) < REST_SHARE:
                return later
            at, spent = now, later


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@contextmanager
def site() -> Iterator[Watched]:
    """Run Redis as `headrace up` does, a worker with a model of each mode, and Flower."""
    with (
        tempfile.TemporaryDirectory() as name,
        redis_server(*DURABLE, environ=as_embedded()) as server,
    ):
        folder = Path(name)
        common = {"handler": "echo", "max_batch_size": 32, "max_queue_depth": 1_000_000}
        models = {model: {**common, "events": mode} for model, mode in MODES.items()}
        path = write_models(folder, **models)
        with (
            celery_worker(server.url, path, folder) as worker,
            Client(server.url, path) as client,
            running_flower(server.url, path, folder) as flower,
        ):
            worker.wait_ready(*models)
            yield Watched(server, worker, client, flower.pid)


def _turn(number: int) -> list[str]:
    """Return the models in another order each time: the first one meets a colder machine."""
    models = list(MODES)
    at = number % len(models)
    return models[at:] + models[:at]


def main() -> None:
    """Print the tables; write them into the document with --write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs of a drain")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10, help="length of a paced load")
    parser.add_argument("--rate", type=int, default=2_000, help="jobs per second of a paced load")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {model: [] for model in MODES}
    costs: dict[str, list[dict[str, float]]] = {model: [] for model in MODES}
    shares: dict[str, list[dict[str, float]]] = {model: [] for model in MODES}
    with site() as running:
        for model in MODES:
            running.drained(model, options.jobs)  # warm
        for turn in range(options.rounds):
            for model in _turn(turn):
                rate, spent = running.drained(model, options.jobs)
                rates[model].append(rate)
                costs[model].append(spent)
        for turn in range(max(1, options.rounds // 2)):
            for model in _turn(turn):
                shares[model].append(running.paced(model, options.rate, options.seconds))
    drains = Table("`events`", "drained, relative to `false`", *(f"{p}, µs" for p in PROCESSES))
    paced = Table(
        f"`events`, at {options.rate:,} jobs/s", *(f"{p}, % of a core" for p in PROCESSES)
    )
    for model, mode in MODES.items():
        word = f"`{str(mode).lower()}`"
        ratio = median(a / b for a, b in zip(rates[model], rates["none"], strict=True))
        cells = (f"{median(cost[name] for cost in costs[model]):.0f}" for name in PROCESSES)
        drains.add(word, f"{ratio:.2f}", *cells)
        cells = (f"{median(of[name] for of in shares[model]) * 100:.0f}" for name in PROCESSES)
        paced.add(word, *cells)
    if options.write:
        how = (
            f"{options.rounds} rounds of {options.jobs:,} jobs in turn, medians; CPU µs a job; "
            "others took part of the machine."
        )
        write_tables("events", how, drains, paced)


if __name__ == "__main__":
    main()
