"""How much of a device's time is used behind the queue: `python -m benchmarks.models.device_wait`.

The handler (device_handler.py) decodes a JPEG of about 45 KB in `preprocess`, and its `inference`
takes 5 ms a batch: it holds the interpreter's lock, or sleeps. Beside the queue run the two best
loops with the same handler: one decodes the next batch in a thread of the same process (`thread`),
the other in a process (`process`). They are measured in turn with the queue. The share is that of
the better loop.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.http_load import WAIT, run_load
from benchmarks.common.inputs import jpegs
from benchmarks.common.line_process import LineProcess, line_process
from benchmarks.common.systems import Headrace
from benchmarks.common.tables import Table, write_tables
from benchmarks.models.device_handler import Device
from headrace.handler import Context
from workers.replicas.devices import model_environ, tuned

HANDLER = f"{Path(__file__).with_name('device_handler.py')}:Device"
HOLDS = ("lock", "sleep")
BATCHES = (1, 4, 8)
MS = 5.0


def handler(hold: str) -> Device:
    """Return the handler, ready to run."""
    device = Device()
    device.initialize(Context("bare", "1", "cpu", Path(), options={"hold": hold, "ms": MS}))
    return device


_decoder: Device


def start_decoder() -> None:
    """Build the handler of a process that decodes."""
    global _decoder
    _decoder = handler("sleep")


def decode(batch: list[bytes]) -> list[Any]:
    """Decode in a process of the pool."""
    return _decoder.preprocess(batch)


def run_loop(device: Device, pool: Executor, batch: list[bytes], seconds: float) -> float:
    """Return the images a second of a loop that decodes two batches ahead."""
    work = decode if isinstance(pool, ProcessPoolExecutor) else device.preprocess
    ahead = [pool.submit(work, batch) for _ in range(2)]
    done, started = 0, time.perf_counter()
    while not done or time.perf_counter() < started + seconds:
        items = ahead.pop(0).result()
        ahead.append(pool.submit(work, batch))
        done += len(device.postprocess(device.inference(items)))
    took = time.perf_counter() - started
    for future in ahead:
        future.result()
    return done / took


def loops() -> None:
    """Run the bare loops; a request is `thread|process HOLD BATCH SECONDS`."""
    (image,) = jpegs(1)
    spawn = multiprocessing.get_context("spawn")
    with (
        ThreadPoolExecutor(1) as threads,
        ProcessPoolExecutor(1, spawn, initializer=start_decoder) as processes,
    ):
        pools: dict[str, Executor] = {"thread": threads, "process": processes}
        for line in sys.stdin:
            pool, hold, batch, seconds = line.split()
            rate = run_loop(handler(hold), pools[pool], [image] * int(batch), float(seconds))
            print(rate, flush=True)


def measured(
    loop: LineProcess, url: str, hold: str, batch: int, clients: int, plan: argparse.Namespace
) -> Iterator[str]:
    """Yield the cells of a row."""
    (image,) = jpegs(1)
    target = f"{url}/api/v1/models/{hold}-{batch}/jobs"
    rates: dict[str, list[float]] = {"thread": [], "process": [], "queue": []}
    p99s = []
    run_load(target, image, clients, plan.seconds / 2, WAIT, "image/jpeg")
    for _ in range(plan.rounds):
        for how in ("thread", "process"):
            rates[how].append(float(loop.request(f"{how} {hold} {batch} {plan.seconds}")))
        load = run_load(target, image, clients, plan.seconds, WAIT, "image/jpeg")
        if load.bad:
            raise RuntimeError(f"{target}: {load.bad} of {load.requests} requests failed")
        rates["queue"].append(load.rate)
        p99s.append(load.p99_ms)
    for how in ("thread", "process", "queue"):
        yield f"{median(rates[how]):,.0f}"
    best = [max(pair) for pair in zip(rates["thread"], rates["process"], strict=True)]
    shares = [queue / most for queue, most in zip(rates["queue"], best, strict=True)]
    yield f"{median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
    yield f"{median(p99s):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--holds", nargs="+", choices=HOLDS, default=list(HOLDS))
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10, 64])
    parser.add_argument("--seconds", type=float, default=2, help="length of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--option", action="append", default=[], help="of the models, as KEY=N")
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    plan = parser.parse_args()
    options = {key: int(value) for key, value in (pair.split("=") for pair in plan.option)}
    models = {
        f"{hold}-{batch}": {
            "handler": HANDLER, "max_batch_size": batch,
            "options": {"hold": hold, "ms": MS}, **options,
        }
        for hold, batch in product(plan.holds, plan.batches)
    }  # fmt: skip
    environ = tuned(model_environ(dict(os.environ), 1), "cpu")
    with ExitStack() as stack:
        stack_of = Headrace(events=False, models=models)
        url = stack.enter_context(stack_of).url
        loop = stack.enter_context(
            line_process("benchmarks.models.device_wait", "loops", environ=environ)
        )
        table = Table(
            "hold, batch, clients", "thread", "process", "queue", "share", "client p99, ms"
        )
        for hold, batch, clients in product(plan.holds, plan.batches, plan.clients):
            if clients < batch:
                continue  # the loops always have full batches
            cells = measured(loop, url, hold, batch, clients, plan)
            table.add(f"{hold}, {batch}, {clients}", *cells)
    if plan.write:
        description = f"loads of {plan.seconds:g} s; rounds: {plan.rounds}."
        write_tables("device_wait", description, table)


if __name__ == "__main__":
    loops() if sys.argv[1:] == ["loops"] else main()
