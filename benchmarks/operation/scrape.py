"""The cost of a scrape: `python -m benchmarks.operation.scrape [--jobs N] [--models N] [--write]`.

There are many models with every counter and bucket in use, a worker that reports for each, and a
backlog. One API process, which does nothing else, is scraped again and again. Between two scrapes
every counter and histogram of every model grows, so that nothing can be cached. CPU is that of the
process, time that of the scraper, and Redis' share is its own accounting. The CPU of a request to a
bare FastAPI route shows how fast the machine is.
`--write` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import psutil

from benchmarks.common.http_load import run_load
from benchmarks.common.inputs import BODY, INPUT
from benchmarks.common.systems import answers, bare_fastapi, process
from benchmarks.common.tables import Table, write_tables
from headrace.config.model.catalog import ModelConfig
from headrace.jobs.ids import new_id
from headrace.observability import worker_report
from headrace.observability.worker_report import Figures, HostFigures
from headrace.queue.submission import SubmitKind, submission, submit_arguments
from headrace.redis import keys
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import script
from headrace.server.ports import free_port
from tests.harness.fakes.worker import publish_added, publish_state, publish_stats
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import write_models

DEPTH: Final = 100_000_000
A_CALL: Final = 250
SCRAPES: Final = 200
#: Scrapes whose CPU is read together, because the kernel counts in hundredths of a second.
A_GROUP: Final = 50


class Cost(NamedTuple):
    """Cost and size of one scrape.

    The CPU is the lower quartile of groups, so that other load matters little.
    """

    cpu_ms: float
    p50_ms: float
    p99_ms: float
    redis_ms: float
    lines: int
    size_bytes: int


def names_of(count: int) -> list[str]:
    return [f"model-{n}" for n in range(count)]


def fill(server: RedisServer, models: int, jobs: int) -> None:
    """Queue `jobs` jobs, and write the statistics of a busy worker for each model."""
    with server.client() as raw:
        client: Any = raw
        client.execute_command(*script("jobs/submit").load_command())
        names = names_of(models)
        for n in range(0, jobs, A_CALL):
            name = names[n // A_CALL % models]
            model = ModelConfig(name=name, handler="echo", max_queue_depth=DEPTH)
            kind = SubmitKind(model, 86_400)
            made = [
                submission(kind, new_id(), INPUT, now_s=0) for _ in range(min(A_CALL, jobs - n))
            ]
            client.execute_command(*job_scripts.submit(0, submit_arguments(made)))
        publish_stats(client, **{name: busy() for name in names})
        for n, name in enumerate(names):
            figures = Figures(HostFigures(f"host-{n % 8}", 8, 0.5, 2**35, 2**34, 2**40, 2**39))
            publish_state(client, f"worker-{n}", name, "ready", figures=figures)
            client.expire(keys.worker(f"worker-{n}"), 3600)


def busy() -> worker_report.ModelStats:
    """Return statistics with every counter and bucket in use, of a model that generates nothing."""
    stats = worker_report.ModelStats()
    unused = {*worker_report.GENERATION_S, *worker_report.GENERATION_COUNTED}
    for name, bounds in worker_report.HISTOGRAMS.items():
        if name not in unused:
            stats.observe(name, [value * 0.99 for value in (*bounds, bounds[-1] * 2)] * 1000)
    for name in worker_report.COUNTED:
        if name not in unused:
            stats.count(name, 12345.5)
    for reason in ("full", "cost", "deadline", "idle", "alone", "drain"):
        stats.left(reason)
    for status in ("succeeded", "failed", "expired", "cancelled", "retried"):
        stats.count(f"{worker_report.ENDED}:{status}", 1_234_567)
    return stats


def measure(server: RedisServer, models: int, scrapes: int = SCRAPES) -> Cost:
    """Scrape one API process over what `fill` has written."""
    with tempfile.TemporaryDirectory() as name, server.client() as raw:
        client: Any = raw
        folder, port = Path(name), free_port()
        options = {"handler": "echo", "max_queue_depth": DEPTH}
        path = write_models(folder, **dict.fromkeys(names_of(models), options))
        environ = {
            "HEADRACE_REDIS_URL": server.url,
            "HEADRACE_MODELS_FILE": str(path),
            "HEADRACE_PORT": str(port),
        }
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "api"]
        with (
            process(command, folder / "api.log", **environ) as api,
            httpx2.Client(timeout=30) as http,
        ):
            wait_until(lambda: answers(f"{url}/live"), "the API answers", 60)
            for _ in range(5):
                text = http.get(f"{url}/metrics").text
            more = dict.fromkeys(names_of(models), busy().drain())
            redis_us, cpus, took = 0, [], []
            for _ in range(0, scrapes, A_GROUP):
                before = cpu_s(api.pid)
                for _ in range(A_GROUP):
                    publish_added(client, more)
                    redis_us -= spent_us(client)
                    started = time.perf_counter()
                    if http.get(f"{url}/metrics").status_code != 200:
                        raise RuntimeError((folder / "api.log").read_text())
                    took.append((time.perf_counter() - started) * 1000)
                    redis_us += spent_us(client)
                cpus.append((cpu_s(api.pid) - before) / A_GROUP * 1000)
            scrapes = len(took)
            redis_ms = redis_us / scrapes / 1000
    took.sort()
    p99 = took[int(scrapes * 0.99)]
    lines, size = text.count("\n"), len(text.encode())
    spent = sorted(cpus)[len(cpus) // 4]
    return Cost(spent, statistics.median(took), p99, redis_ms, lines, size)


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def spent_us(client: Any) -> int:
    """Return the microseconds that Redis has spent in commands."""
    return sum(int(of["usec"]) for of in client.info("commandstats").values())


def bare_ms(url: str, pid: int) -> float:
    """Return the CPU milliseconds of one request to the bare route."""
    before = cpu_s(pid)
    load = run_load(url, BODY, 64, 2)
    return (cpu_s(pid) - before) / load.requests * 1000


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1_000_000, help="the backlog")
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--write", action="store_true", help="put it into docs/performance.md")
    arguments = parser.parse_args()
    table = Table("", "1 model, none queued", f"{arguments.models}, {arguments.jobs:,} queued")
    costs, bare = [], []
    for models, jobs in ((1, 0), (arguments.models, arguments.jobs)):
        with (
            redis_server() as server,
            tempfile.TemporaryDirectory() as name,
            bare_fastapi(Path(name)) as route,
        ):
            fill(server, models, jobs)
            # The least of three: other load on the machine only adds.
            taken = [(measure(server, models), bare_ms(*route)) for _ in range(3)]
        costs.append(min(cost for cost, _ in taken))
        bare.append(min(took for _, took in taken))
    for name, show in (
        ("CPU of the API process, ms", lambda cost: f"{cost.cpu_ms:.2f}"),
        ("time to the response, p50, ms", lambda cost: f"{cost.p50_ms:.1f}"),
        ("time to the response, p99, ms", lambda cost: f"{cost.p99_ms:.1f}"),
        ("time of Redis, ms", lambda cost: f"{cost.redis_ms:.2f}"),
        ("lines", lambda cost: f"{cost.lines:,}"),
        ("KiB", lambda cost: f"{cost.size_bytes / 1024:.0f}"),
    ):
        table.add(name, *map(show, costs))
    requests = [f"{cost.cpu_ms / took:.0f}" for cost, took in zip(costs, bare, strict=True)]
    table.add("its CPU, in requests of the bare FastAPI route in the same run", *requests)
    if arguments.write:
        write_tables("scrape", f"{SCRAPES} scrapes, the best of three runs.", table)


if __name__ == "__main__":
    main()
