"""The cost of lists of jobs: `python -m benchmarks.redis.job_lists [--jobs N]`.

First jobs/submit.lua is measured with and without the index, in turn on two servers. The time is
that of Redis (`INFO commandstats`), its lower quartile, so that other load matters little. Then
pages of a backlog of N jobs are read.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import httpx2

from benchmarks.common.inputs import INPUT
from headrace.config.model_catalog import ModelConfig
from headrace.jobs.ids import new_id
from headrace.queue.submission import submission, submit_arguments
from headrace.redis import keys
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import script
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.redis_servers import redis_server

INDEX_MAX: Final = 100_000
DEPTH: Final = 100_000_000
MODEL: Final = ModelConfig(name="echo", handler="echo", max_queue_depth=DEPTH)
PAIRS: Final = 40
#: Jobs of a call: a single submit, submits gathered under load, and a bulk request.
CALLS: Final = (1, 32, 256)
PAGES: Final = 200


class Pages(NamedTuple):
    """Milliseconds of a page for a client."""

    name: str
    p50_ms: float
    p99_ms: float


def submit(client: Any, jobs: int, index_max: int) -> None:
    """Enqueue `jobs` jobs in one call."""
    made = [submission(new_id(), MODEL, INPUT, now_s=0, result_ttl_s=86400) for _ in range(jobs)]
    client.execute_command(*job_scripts.submit(index_max, submit_arguments(made)))


def spent_us(client: Any) -> int:
    """Return the microseconds that Redis has spent in scripts."""
    return int(client.info("commandstats")["cmdstat_evalsha"]["usec"])


def measure_submit(jobs: int, pairs: int = PAIRS) -> tuple[float, float]:
    """Return lower quartiles of microseconds per job: without the index, and with a full one."""
    with ExitStack() as stack:
        clients: list[Any] = []
        for _ in range(2):
            server = stack.enter_context(redis_server())
            clients.append(stack.enter_context(server.client()))
            clients[-1].execute_command(*script("jobs/submit").load_command())
        limits = (0, 10_000)
        for client, limit in zip(clients, limits, strict=True):
            for _ in range(limits[1] // 250):
                submit(client, 250, limit)
        took: list[list[float]] = [[], []]
        calls = max(1, 512 // jobs)
        for _ in range(pairs):
            for client, limit, row in zip(clients, limits, took, strict=True):
                before = spent_us(client)
                for _ in range(calls):
                    submit(client, jobs, limit)
                row.append((spent_us(client) - before) / calls / jobs)
    return sorted(took[0])[pairs // 4], sorted(took[1])[pairs // 4]


def measure_pages(http: httpx2.Client, pages: int = PAGES) -> list[Pages]:
    """Read pages of a list on a keep-alive connection."""
    found = []
    for name, query in (
        ("newest 50", "?model=echo"),
        ("newest 1,000", "?model=echo&limit=1000"),
        ("succeeded: no jobs", "?model=echo&status=succeeded"),
    ):
        took = []
        for _ in range(pages):
            started = time.perf_counter()
            response = http.get(f"/api/v1/jobs{query}")
            took.append((time.perf_counter() - started) * 1000)
            if response.status_code != 200:
                raise RuntimeError(response.text)
        took.sort()
        found.append(Pages(name, statistics.median(took), took[int(pages * 0.99)]))
    return found


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1_000_000, help="the backlog")
    options = parser.parse_args()
    for jobs in CALLS:
        without, with_it = measure_submit(jobs)
        ratio = with_it / without
        print(f"jobs/submit.lua, {jobs} jobs a call: {without:.1f} us a job, with the index "
              f"{with_it:.1f} ({ratio:.2f})")  # fmt: skip
    models = catalog(echo={"max_queue_depth": DEPTH})
    with redis_server() as server, server.client() as client:
        client.execute_command(*script("jobs/submit").load_command())
        for _ in range(options.jobs // 250):
            submit(client, 250, INDEX_MAX)
        used = client.info("memory")["used_memory"]
        index = client.memory_usage(keys.job_index("echo"), samples=0)
        listed = client.zcard(keys.job_index("echo"))
        print(f"{client.llen('headrace.echo'):,} jobs queued, {used / 2**20:,.0f} MiB; index of "
              f"{listed:,} jobs: {index / 2**20:.1f} MiB")  # fmt: skip
        with api_server(server.url, models) as api:
            for page in measure_pages(api.http):
                print(f"page, {page.name}: p50 {page.p50_ms:.1f} ms, p99 {page.p99_ms:.1f} ms")


if __name__ == "__main__":
    main()
