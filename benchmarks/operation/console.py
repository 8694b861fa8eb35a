"""What a console reads among many jobs: `python -m benchmarks.operation.console [--write]`.

The jobs belong to ten models, with metadata and a hundred API keys; most are queued, and as many of
each model have failed as are kept. Each model has its whole time series, and a worker that reports
it. First one client reads what the pages of a console read, again and again. Then many consoles
poll the overview every two seconds and the last hour every thirty, each on a connection of its own.
`--write` puts the tables into docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2

from benchmarks.common.inputs import INPUT
from benchmarks.common.systems import answers, core_shares, cpu_s, process
from benchmarks.common.tables import Table, write_tables
from headrace.access.api_key import Caller
from headrace.config.model.catalog import ModelConfig
from headrace.jobs.ids import new_id
from headrace.jobs.options import JobOptions
from headrace.observability import series
from headrace.observability.worker_report import Figures, HostFigures
from headrace.queue.submission import SubmitKind, submission, submit_arguments
from headrace.redis import keys
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import script
from headrace.redis.scripts.jobs import Settlement
from headrace.server.ports import free_port
from tests.harness.fakes.worker import publish_state
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import write_models

DEPTH: Final = 100_000_000
MODELS: Final = 10
A_CALL: Final = 256
READS: Final = 100
CONSOLES: Final = 200
POLL_S: Final = 2.0
#: A console reads the last hour with every so many polls.
HOUR_EVERY: Final = 15
LOAD_S: Final = 20.0
CALLERS: Final = [Caller(f"{n:012x}", sees_all=False) for n in range(100)]
ERROR: Final = (
    '{"type":"handler-error","message":"KeyError","retryable":false,"exception":"KeyError-%d",'
    '"where":"words.py:7"}'
)


class Times(NamedTuple):
    """How long a request takes, the CPU of the API and of Redis, and how long its answer is."""

    p50_ms: float
    p95_ms: float
    api_ms: float
    redis_ms: float
    size_bytes: int


def names_of(count: int) -> list[str]:
    return [f"model-{n}" for n in range(count)]


def fill(server: RedisServer, jobs: int, failed: int, models: int = MODELS) -> str:
    """Fill a Redis: `jobs` jobs, of which so many of each model have failed; return an id."""
    some = ""
    with server.client() as raw:
        client: Any = raw
        for name in ("jobs/submit", "jobs/claim", "jobs/settle"):
            client.execute_command(*script(name).load_command())
        for number, name in enumerate(names_of(models)):
            for at in range(0, jobs // models, A_CALL):
                size = min(A_CALL, jobs // models - at)
                some = _submit(client, name, at, size, jobs)
            for at in range(0, failed, A_CALL):
                _fail(client, name, at, min(A_CALL, failed - at), failed)
            _write_series(client, name)
            host = HostFigures(f"host-{number % 8}", 8, 0.5, 2**35, 2**34, 2**40, 2**39)
            publish_state(client, f"worker-{number}", name, "ready", figures=Figures(host))
            client.expire(keys.worker(f"worker-{number}"), 3600)
    return some


def _submit(client: Any, name: str, at: int, size: int, index_max: int) -> str:
    model = ModelConfig(name=name, handler="echo", max_queue_depth=DEPTH)
    made = []
    for n in range(at, at + size):
        options = JobOptions(metadata={"order": n, "customer": f"c-{n % 5_000}"})
        kind = SubmitKind(model, 86_400, options, caller=CALLERS[n % len(CALLERS)])
        made.append(submission(kind, new_id(), INPUT, now_s=0))
    client.execute_command(*job_scripts.submit(index_max, submit_arguments(made)))
    return made[0].id


def _fail(client: Any, name: str, at: int, size: int, kept: int) -> None:
    queue = keys.queue_name(name)
    claim = job_scripts.claim(
        queue, name, "1.0", (size,) * 4, lease_us=600_000_000, owner="b",
        result_ttl_s=86_400, job_index_max=0, yield_us=0,
    )  # fmt: skip
    settled = [
        Settlement(
            row[1].decode(), row[2].decode(), "f", b'{"traceback": "x"}', 1, "", "e",
            ERROR % (at // A_CALL % 50), "",
        )
        for row in job_scripts.ClaimReply(client.execute_command(*claim)).jobs
    ]  # fmt: skip
    client.execute_command(*job_scripts.settle(queue, "1.0", settled, f"604800 {kept}"))


def _write_series(client: Any, name: str) -> None:
    drawn = random.Random(name)
    client.setrange(keys.series(name), series.SIZE - 1, "\0")
    for ring in (series.MINUTE, series.HOUR):
        end = int(time.time()) // ring.step_s
        for number in range(end - ring.kept, end):
            jobs = drawn.randrange(10_000)
            bucket = series.Bucket(
                jobs, jobs, 3, jobs // 7, drawn.random() * 9, 2, drawn.random() * 8,
                drawn.random(), drawn.random() * 3, drawn.random(),
            )  # fmt: skip
            client.setrange(
                keys.series(name), series.place(ring, number), series.pack(number, bucket)
            )


def pages(job_id: str) -> dict[str, str]:
    """Return what the pages of a console read, by words."""
    return {
        "overview": "/api/v1/overview",
        "findings": "/api/v1/findings",
        "last hour of all models": "/api/v1/series",
        "a model": "/api/v1/models/model-0",
        "a day of a model by minute": f"/api/v1/models/model-0/series?since={time.time() - 86_000}",
        "30 days of a model": "/api/v1/models/model-0/series?step=hour&since="
        f"{time.time() - 30 * 86_400}",
        "queues": "/api/v1/queues",
        "newest jobs": "/api/v1/jobs",
        "newest jobs of a model": "/api/v1/jobs?model=model-0",
        "one id": f"/api/v1/jobs?id={job_id}",
        "jobs by status": "/api/v1/jobs?status=running",
        "failed jobs": "/api/v1/jobs?status=failed",
        "jobs by error": "/api/v1/jobs?error=KeyError-49",
        "jobs of an API key": f"/api/v1/jobs?key={7:012x}",
        "jobs by metadata": "/api/v1/jobs?metadata=customer=c-77",
        "failures by cause": "/api/v1/failures",
        "failures of a model": "/api/v1/failures?model=model-0",
        "failures of the last hour": f"/api/v1/failures?since={time.time() - 3600}",
        "dead letters of a model": "/api/v1/models/model-0/dead-letters",
    }


def measure_page(http: httpx2.Client, path: str, pids: Sequence[int], reads: int = READS) -> Times:
    """Read a page again and again on one connection; `pids` are those of the API and of Redis."""
    took = []
    before = [cpu_s(pid) for pid in pids]
    for _ in range(reads):
        began = time.perf_counter()
        answer = http.get(path)
        took.append((time.perf_counter() - began) * 1000)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.text}")
    api_ms, redis_ms = (
        (cpu_s(pid) - spent) / reads * 1000 for pid, spent in zip(pids, before, strict=True)
    )
    took.sort()
    p95_ms = took[int(reads * 0.95)]
    return Times(statistics.median(took), p95_ms, api_ms, redis_ms, len(answer.content))


async def poll(url: str, consoles: int, seconds: float) -> list[float]:
    """Poll as so many consoles do; return how long each overview took, in milliseconds."""
    took: list[float] = []
    until = time.monotonic() + seconds
    limits = httpx2.Limits(max_connections=consoles, max_keepalive_connections=consoles)

    async def console(http: httpx2.AsyncClient) -> None:
        etags = {"/api/v1/overview": "", "/api/v1/series": ""}
        await asyncio.sleep(random.uniform(0, POLL_S))
        polls = random.randrange(HOUR_EVERY)
        while time.monotonic() < until:
            began = time.perf_counter()
            for path in etags if polls % HOUR_EVERY == 0 else ("/api/v1/overview",):
                answer = await http.get(path, headers={"if-none-match": etags[path]})
                etags[path] = answer.headers["etag"]
            took.append((time.perf_counter() - began) * 1000)
            polls += 1
            await asyncio.sleep(max(0.0, POLL_S - (time.perf_counter() - began)))

    async with httpx2.AsyncClient(base_url=url, timeout=30, limits=limits) as http:
        await asyncio.gather(*(console(http) for _ in range(consoles)))
    return sorted(took)


def measure_consoles(
    url: str, api: int, redis: int, consoles: int, seconds: float = LOAD_S
) -> tuple[list[float], Sequence[float]]:
    """Return how long each poll took, and the shares of a core of the API and of Redis."""
    polls: list[float] = []

    async def load() -> list[float]:
        shares = asyncio.to_thread(core_shares, [[api], [redis]], seconds)
        took, found = await asyncio.gather(poll(url, consoles, seconds), shares)
        polls.extend(took)
        return found

    shares = asyncio.run(load())
    return polls, shares


def main() -> None:
    """Print the tables; write them into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1_000_000, help="in Redis")
    parser.add_argument("--failed", type=int, default=10_000, help="of each model")
    parser.add_argument("--consoles", type=int, default=CONSOLES)
    parser.add_argument("--reads", type=int, default=READS, help="of each page")
    parser.add_argument("--write", action="store_true", help="put it into docs/performance.md")
    options = parser.parse_args()
    table = Table("", "p50, ms", "p95, ms", "CPU of the API, ms", "of Redis, ms", "KiB")
    load = Table("", "polls a second", "core of the API", "of Redis", "p50, ms", "p95, ms")
    with redis_server() as server, tempfile.TemporaryDirectory() as name, server.client() as raw:
        began = time.monotonic()
        some = fill(server, options.jobs, options.failed)
        client: Any = raw
        info = client.info()
        print(f"{options.jobs:,} jobs in {time.monotonic() - began:.0f} s, "
              f"{info['used_memory'] / 2**20:,.0f} MiB")  # fmt: skip
        folder, port = Path(name), free_port()
        model = {"handler": "echo", "max_queue_depth": DEPTH}
        path = write_models(folder, **dict.fromkeys(names_of(MODELS), model))
        environ = {
            "HEADRACE_REDIS_URL": server.url, "HEADRACE_MODELS_FILE": str(path),
            "HEADRACE_PORT": str(port), "HEADRACE_JOB_INDEX_MAX": str(options.jobs),
        }  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "api"]
        with (
            process(command, folder / "api.log", **environ) as api,
            httpx2.Client(base_url=url, timeout=60) as http,
        ):
            wait_until(lambda: answers(f"{url}/live"), "the API answers", 60)
            for words, page in pages(some).items():
                times = measure_page(http, page, (api.pid, info["process_id"]), options.reads)
                cells = (f"{value:.1f}" for value in (*times[:4], times.size_bytes / 1024))
                table.add(words, *cells)
            for consoles in (0, options.consoles):
                polls, shares = measure_consoles(url, api.pid, info["process_id"], consoles)
                p50, p95 = (polls[len(polls) * n // 100] if polls else 0 for n in (50, 95))
                load.add(f"{consoles} consoles", f"{len(polls) / LOAD_S:.0f}",
                         *(f"{share:.1f} %" for share in shares),
                         f"{p50:.1f}", f"{p95:.1f}")  # fmt: skip
    if options.write:
        write_tables("console", f"{options.jobs:,} jobs.", table, load)


if __name__ == "__main__":
    main()
