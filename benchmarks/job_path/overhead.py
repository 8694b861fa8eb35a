"""The overhead of a job: `python -m benchmarks [--write]`.

`echo` returns its input, so that only the overhead is measured: one API process, one worker, Redis
with AOF everysec, real settlements, Flower stopped. The same run measures plain Celery with a task
per job and a bare FastAPI route. `--write` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.common.http_load import WAIT, Load, generator, run_load
from benchmarks.common.inputs import BODY
from benchmarks.common.systems import Cpu, Headrace, backlog_drained, bare_fastapi, plain_celery
from benchmarks.common.tables import Table, write_tables
from benchmarks.job_path.bulk_submit import measure_bulk
from benchmarks.job_path.submit_burst import Burst, burst
from tests.harness.wait import wait_until

BULK_JOBS = 100_000
BURST = 1_500


def median(loads: list[Load]) -> Load:
    """Return the load with the median rate."""
    return sorted(loads, key=lambda load: load.rate)[len(loads) // 2]


def paired(
    ours: str, bare: str, connections: int, seconds: float, rounds: int
) -> tuple[list[Load], list[Load]]:
    """Run loads on ours and on the bare route in turn, on the same machine."""
    pairs = [
        (
            run_load(ours, BODY, connections, seconds, WAIT),
            run_load(bare, BODY, connections, seconds),
        )
        for _ in range(rounds)
    ]
    if any(load.bad for pair in pairs for load in pair):
        raise RuntimeError(f"requests failed: {pairs}")
    return [one for one, _ in pairs], [other for _, other in pairs]


def spread(cpu: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.3f}" for name, seconds in cpu.items())


def measure_headrace(
    table: Table, bare: str, *, events: bool, seconds: float, rounds: int, drain: int
) -> None:
    label = "events on" if events else "events off"
    with Headrace(events=events) as stack:
        run_load(stack.submit_url, BODY, 64, 1, WAIT)
        run_load(bare, BODY, 64, 1)
        cpu = stack.cpu()
        cpu.start()
        ours, theirs = paired(stack.submit_url, bare, 64, seconds, rounds)
        taken = cpu.per_1000(sum(load.requests for load in ours))
        load, no_op = median(ours), median(theirs)
        share = statistics.median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
        table.add(f"submit and wait, 64 connections, a second ({label})", f"{load.rate:,.0f}")
        table.add(f"… p50 / p99, ms ({label})", f"{load.p50_ms:.1f} / {load.p99_ms:.1f}")
        table.add(
            f"… as a share of the bare FastAPI no-op in the same run ({label})", f"{share:.2f}"
        )
        table.add(f"… CPU s per 1,000 jobs ({label})", spread(taken))
        if events:
            return
        table.add("bare FastAPI no-op, 64 connections, a second", f"{no_op.rate:,.0f}")
        table.add("… p50 / p99, ms", f"{no_op.p50_ms:.1f} / {no_op.p99_ms:.1f}")
        ours, theirs = paired(stack.submit_url, bare, 1, seconds, rounds)
        load, no_op = median(ours), median(theirs)
        table.add("submit and wait, alone, p50 / p99, ms", f"{load.p50_ms:.2f} / {load.p99_ms:.2f}")
        table.add("bare FastAPI no-op, alone, p50, ms", f"{no_op.p50_ms:.2f}")
        measure_queue(table, stack, drain, seconds, rounds)
        bulk = measure_bulk(stack, bare, BULK_JOBS, rounds)
        table.add("bulk submit, one connection, jobs a second", f"{bulk.rate:,.0f}")
        table.add(
            "… times the requests of the bare FastAPI no-op in the same run", f"{bulk.ratio:.1f}"
        )
        table.add("… CPU s per 1,000 jobs", spread(bulk.cpu))


def measure_queue(table: Table, stack: Headrace, drain: int, seconds: float, rounds: int) -> None:
    wait_until(stack.idle, "all jobs ended", timeout_s=60)
    rates, sizes = [], []
    cpu = stack.cpu()
    cpu.start()
    for _ in range(rounds):
        os.kill(stack.worker.pid, signal.SIGSTOP)
        with stack.redis.client() as client:
            before = client.info("memory")["used_memory"]
            stack.client.submit("echo", *({"x": n} for n in range(drain)))
            sizes.append((client.info("memory")["used_memory"] - before) / drain)
        os.kill(stack.worker.pid, signal.SIGCONT)
        started = time.perf_counter()
        wait_until(stack.idle, "the backlog is drained", timeout_s=120)
        rates.append(drain / (time.perf_counter() - started))
    table.add("bytes of Redis per queued job, with record and indices", f"{max(sizes):,.0f}")
    table.add(f"drain of {drain:,} jobs, a second", f"{statistics.median(rates):,.0f}")
    table.add("… CPU s per 1,000 jobs, submit included", spread(cpu.per_1000(drain * rounds)))
    os.kill(stack.worker.pid, signal.SIGSTOP)
    load = median([run_load(stack.submit_url, BODY, 64, seconds) for _ in range(rounds)])
    os.kill(stack.worker.pid, signal.SIGCONT)
    table.add("submit only, 64 connections, a second", f"{load.rate:,.0f}")
    wait_until(stack.idle, "the backlog is drained", timeout_s=120)
    measure_burst(table, stack, rounds)


def measure_burst(table: Table, stack: Headrace, rounds: int) -> None:
    bursts = []
    for _ in range(rounds):
        bursts.append(burst(stack.short_url, BODY, BURST))
        wait_until(stack.idle, "the accepted jobs have ended", timeout_s=60)
    bursts.sort(key=_seconds)
    if any(set(one.statuses) - {202, 429} for one in bursts):
        raise RuntimeError(f"requests failed: {bursts}")
    middle = bursts[len(bursts) // 2]
    table.add(
        f"{BURST:,} submits at once on a queue of 100: all answered, s (accepted, refused)",
        f"{middle.seconds:.2f} ({middle.statuses[202]}, {middle.statuses[429]})",
    )


def _seconds(one: Burst) -> float:
    return one.seconds


def measure_celery(table: Table, folder: Path, jobs: int) -> None:
    with plain_celery(folder) as (app, server, pid):
        os.kill(pid, signal.SIGSTOP)
        started = time.perf_counter()
        for n in range(jobs):
            app.send_task("echo", args=[{"x": n}], ignore_result=False)
        submitted_s = time.perf_counter() - started
        children = [int(child) for child in _children(pid)]
        assert server.process is not None
        cpu = Cpu({"worker": [pid, *children], "redis": [server.process.pid]})
        cpu.start()
        os.kill(pid, signal.SIGCONT)
        drained_s = backlog_drained(server, "celery")
        table.add(
            "plain Celery (prefork, a task per job): drained a second", f"{jobs / drained_s:,.0f}"
        )
        table.add("… CPU s per 1,000 jobs", spread(cpu.per_1000(jobs)))
        table.add("… send_task a second", f"{jobs / submitted_s:,.0f}")
        waits = []
        for n in range(50):
            started = time.perf_counter()
            app.send_task("echo", args=[{"x": n}]).get(timeout=10)
            waits.append((time.perf_counter() - started) * 1000)
        table.add("… send and get, alone, p50, ms", f"{statistics.median(waits):.2f}")


def _children(pid: int) -> Iterable[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def main() -> None:
    """Measure everything and print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/performance.md"
    )
    parser.add_argument("--seconds", type=float, default=6, help="length of each load")
    parser.add_argument("--rounds", type=int, default=3, help="loads of which the median counts")
    parser.add_argument("--drain", type=int, default=20_000)
    arguments = parser.parse_args()
    table = Table()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with bare_fastapi(folder) as (bare, _pid):
            for events in (False, True):
                measure_headrace(
                    table, bare, events=events, seconds=arguments.seconds,
                    rounds=arguments.rounds, drain=arguments.drain,
                )  # fmt: skip
        measure_celery(table, folder, 2_000)
    if arguments.write:
        write_tables("echo", f"load by {generator()}.", table)
