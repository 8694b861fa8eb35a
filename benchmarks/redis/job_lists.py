"""The cost of lists and searches: `python -m benchmarks.redis.job_lists [--jobs N] [--search]`.

First jobs/submit.lua is measured with and without the index, in turn on two servers. The time is
that of Redis (`INFO commandstats`), its lower quartile, so that other load matters little. Then
pages of a backlog of N jobs are read. `--search` measures only the search: all N jobs are in the
index, with metadata and 1,000 API keys, and 10,000 of them have failed for 50 reasons.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import httpx2

from benchmarks.common.inputs import INPUT
from headrace.access.api_key import Caller
from headrace.config.model.catalog import ModelConfig
from headrace.jobs.ids import new_id
from headrace.jobs.options import JobOptions
from headrace.queue.submission import SubmitKind, submission, submit_arguments
from headrace.redis import keys
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import script
from headrace.redis.scripts.jobs import Settlement
from tests.harness.servers.api_server import api_server, catalog
from tests.harness.servers.redis_servers import redis_server

INDEX_MAX: Final = 100_000
DEPTH: Final = 100_000_000
MODEL: Final = ModelConfig(name="echo", handler="echo", max_queue_depth=DEPTH)
PAIRS: Final = 40
#: Jobs of a call: a single submit, submits gathered under load, and a bulk request.
CALLS: Final = (1, 32, 256)
PAGES: Final = 200
FAILED: Final = 10_000
ERROR: Final = (
    '{"type":"handler-error","message":"KeyError","retryable":false,"exception":"KeyError-%d",'
    '"where":"words.py:7"}'
)
#: How often each search is made, and for how long all of its pages are read at most.
SEARCHES: Final = 3
WALK_MAX_S: Final = 5.0


class Pages(NamedTuple):
    """Milliseconds of a page for a client."""

    name: str
    p50_ms: float
    p99_ms: float


def submit(client: Any, jobs: int, index_max: int) -> None:
    """Enqueue `jobs` jobs in one call."""
    kind = SubmitKind(MODEL, 86_400)
    made = [submission(kind, new_id(), INPUT, now_s=0) for _ in range(jobs)]
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


def fill(client: Any, jobs: int) -> tuple[str, str]:
    """Make the jobs of the search; return an id, and the creation time of a job in the middle."""
    for name in ("jobs/submit", "jobs/claim", "jobs/settle"):
        client.execute_command(*script(name).load_command())
    callers = [Caller(f"{n:012x}", sees_all=False) for n in range(1_000)]
    middle = ""
    for at in range(0, jobs, 250):
        made = []
        for n in range(at, at + 250):
            options = JobOptions(metadata={"order": n, "customer": f"c-{n % 5_000}"})
            kind = SubmitKind(MODEL, 86_400, options, caller=callers[n % 1_000])
            made.append(submission(kind, new_id(), INPUT, now_s=0))
        client.execute_command(*job_scripts.submit(jobs, submit_arguments(made)))
        middle = made[0].id if at == jobs // 500 * 250 else middle
    for part in range(FAILED // 200):
        claim = job_scripts.claim(
            keys.queue_name("echo"), "echo", "1.0", (200,) * 4, lease_us=600_000_000, owner="b",
            result_ttl_s=86400, job_index_max=0, yield_us=0,
        )  # fmt: skip
        rows = job_scripts.ClaimReply(client.execute_command(*claim)).jobs
        settled = [
            Settlement(
                row[1].decode(), row[2].decode(), "f", b'{"traceback": "x"}', 1, "", "e",
                ERROR % (part % 50), "",
            )
            for row in rows
        ]  # fmt: skip
        settle = job_scripts.settle(keys.queue_name("echo"), "1.0", settled, f"604800 {FAILED}")
        client.execute_command(*settle)
    return middle, str(int(client.hget(keys.job(middle), "c")) / 1e6)


def measure_search(client: Any, url: str, jobs: int) -> None:
    """Print what the index takes, and how long each search does: a page, and all pages."""
    job_id, at = fill(client, jobs)
    for name, key in (("index", keys.job_index("echo")), ("failures", keys.failures("echo"))):
        size, count = client.memory_usage(key, samples=0), client.zcard(key)
        print(f"{name}: {count:,} jobs, {size / count:.0f} bytes a job")
    models = catalog(echo={"max_queue_depth": DEPTH})
    with api_server(url, models, job_index_max=jobs) as api:
        for name, path, query in (
            ("failures by cause", "/api/v1/failures", ""),
            ("one id", "/api/v1/jobs", f"id={job_id}"),
            ("error", "/api/v1/jobs", "error=words.py:7"),
            ("error of a single reason", "/api/v1/jobs", "error=KeyError-49"),
            ("status=failed", "/api/v1/jobs", "status=failed"),
            ("one API key", "/api/v1/jobs", f"key={7:012x}"),
            ("status=succeeded: no jobs", "/api/v1/jobs", "status=succeeded"),
            ("metadata: one job", "/api/v1/jobs", "metadata=order=1234"),
            ("metadata: 200 jobs", "/api/v1/jobs", "metadata=customer=c-77"),
            ("metadata in 1,000 jobs of time", "/api/v1/jobs",
             f"metadata=customer=c-77&since={at}&until={float(at) + 0.05}"),
        ):  # fmt: skip
            print_search(api.http, name, f"{path}?{query}")


def print_search(http: httpx2.Client, name: str, url: str) -> None:
    """Print the times of all pages of a search, a few times."""
    pages: list[float] = []
    walks: list[float] = []
    for _ in range(SEARCHES):
        cursor, began = "", time.perf_counter()
        while cursor is not None:
            started = time.perf_counter()
            body = http.get(url + (f"&cursor={cursor}" if cursor else "")).json()
            pages.append((time.perf_counter() - started) * 1000)
            cursor = body.get("cursor")
            if time.perf_counter() - began > WALK_MAX_S:
                break
        walks.append(time.perf_counter() - began)
    pages.sort()
    p95 = pages[int(len(pages) * 0.95)]
    print(f"{name}: page p50 {statistics.median(pages):.1f} ms, p95 {p95:.1f} ms; "
          f"{len(pages) / SEARCHES:.0f} pages, {statistics.median(walks):.2f} s")  # fmt: skip


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1_000_000, help="the backlog")
    parser.add_argument("--search", action="store_true", help="measure only the search")
    options = parser.parse_args()
    if options.search:
        with redis_server() as server, server.client() as client:
            measure_search(client, server.url, options.jobs)
        return
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
