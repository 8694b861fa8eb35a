"""500 models that load on demand, 20 of them busy.

    python -m benchmarks.models.many_models [--write]

Two deployments run in turns: one has the busy models only, the other has all. Each has an API, a
worker and a Redis. First the CPU time of the large one is measured while no job comes. Then a small
handler that loads at once is registered again and again, with `wait`. Then the busy models get
jobs, in one deployment after the other.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.common.systems import core_shares
from benchmarks.common.tables import Table, write_tables
from headrace import Client as HttpClient
from headrace.queue.job_queue import read_depths
from headrace.redis import keys
from headrace.redis.script_client import call_script
from headrace.redis.scripts.queues import depth
from tests.harness.servers.api_processes import ApiProcesses, api_processes
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

MODELS: Final = 500
BUSY: Final = 20
IDLE_S: Final = 20.0
REGISTERED: Final = 5
ROUNDS: Final = 7
#: Of each busy model in one round.
JOBS: Final = 200
WAIT_S: Final = 60.0
HANDLER: Final = """
from headrace import Handler


class Small(Handler):
    def inference(self, items):
        return items
"""


@dataclass
class Site:
    """A deployment and its clients."""

    server: RedisServer
    api: ApiProcesses
    worker: Worker
    http: HttpClient
    client: Client
    folder: Path

    def shares(self, seconds: float) -> tuple[float, float, float]:
        """Return percentages of a core while nothing is done: the worker, the API and Redis."""
        server = self.server.process
        assert server is not None
        groups = [[self.worker.pid], [self.api.process.pid, *self.api.pids()], [server.pid]]
        worker, api, redis = core_shares(groups, seconds)
        return worker, api, redis

    def register_s(self, name: str) -> float:
        """Return how long a small model takes from its registration until it is ready."""
        began = time.perf_counter()
        done = self.http.register_model(
            name, "1.0", {"handler": str(self.folder / "small.py")}, wait=WAIT_S
        )
        assert done.state == "ready", done
        took = time.perf_counter() - began
        self.http.remove_model(name, wait=WAIT_S)
        return took

    def jobs_per_s(self, models: int, jobs: int) -> float:
        """Return how many jobs a second run, of all busy models at once."""
        names = [f"m{model:03}" for model in range(models)]
        queues = [keys.queue_name(name) for name in names]

        def ended() -> bool:
            reply = call_script(self.client.redis, depth(queues))
            return not any(one.total + one.in_flight for one in read_depths(queues, reply))

        began = time.perf_counter()
        for name in names:
            self.client.submit(name, *range(jobs))
        wait_until(ended, "all jobs have ended", 300)
        return jobs * models / (time.perf_counter() - began)


@contextmanager
def site(models: int) -> Iterator[Site]:
    """Run a deployment with so many models."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "small.py").write_text(HANDLER)
        options = {"handler": "small.py", "load": "on_demand", "idle_unload_s": 3600}
        path = write_models(folder, **{f"m{n:03}": options for n in range(models)})
        server = stack.enter_context(redis_server())
        api = stack.enter_context(
            api_processes(
                folder / "api", server.url, 1, "--models", str(path), HEADRACE_MODEL_API="true"
            )
        )
        worker = stack.enter_context(celery_worker(server.url, path, folder, arguments=()))
        wait_until(lambda: bool(worker.states()), "the worker reports", 60)
        http = stack.enter_context(HttpClient(api.url))
        client = stack.enter_context(Client(server.url, path))
        yield Site(server, api, worker, http, client, folder)


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--models", type=int, default=MODELS)
    parser.add_argument("--busy", type=int, default=BUSY)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    table = Table("", "measured")
    with site(options.models) as large, site(options.busy) as small:
        time.sleep(5)
        shares = large.shares(IDLE_S)
        for part, share in zip(("the worker", "the API", "Redis"), shares, strict=True):
            table.add(
                f"{options.models} unloaded models: CPU of {part}, % of a core", f"{share:.2f}"
            )
        took = sorted(large.register_s(f"new{n}") for n in range(REGISTERED))
        table.add("register to ready, median s", f"{median(took):.2f}")
        table.add("register to ready, most s", f"{took[-1]:.2f}")
        for one in (small, large):  # loads them
            one.jobs_per_s(options.busy, 1)
        rates: list[tuple[float, float]] = []
        for _ in range(options.rounds):
            alone = small.jobs_per_s(options.busy, options.jobs)
            rates.append((alone, large.jobs_per_s(options.busy, options.jobs)))
        table.add(
            f"jobs/s of {options.busy} busy models alone", f"{median(a for a, _ in rates):,.0f}"
        )
        others = options.models - options.busy
        table.add(f"… next to {others} unloaded ones", f"{median(b for _, b in rates):,.0f}")
        table.add("… ratio", f"{median(b / a for a, b in rates):.2f}")
    if options.write:
        jobs = options.busy * options.jobs
        text = f"{options.rounds} rounds of {jobs:,} jobs; load {os.getloadavg()[0]:.1f}."
        write_tables("many_models", text, table)


if __name__ == "__main__":
    main()
