"""Bulk submit: jobs per second over one connection, from a prepared body.

    python -m benchmarks.job_path.bulk_submit [--jobs N] [--rounds N]

The client shares the cores with the server, so it does little: the kernel sends the body
(`sendfile`), and the client drops the responses. The worker is stopped. Each round is paired with a
load on a bare FastAPI route, with 64 connections.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.common.http_load import run_load
from benchmarks.common.systems import Headrace, bare_fastapi
from tests.harness.processes.processes import suspend
from tests.harness.wait import wait_until

LINE = b'{"model":"echo","input":{"x": 1}}\n'
PATH = "/api/v1/jobs/bulk"
RECEIVE_BYTES = 1024 * 1024
BARE_S = 2.0


class Bulk(NamedTuple):
    """The result of all rounds.

    Attributes:
        rate: jobs per second, the median.
        ratio: the rate divided by the requests per second of the bare route, median of the pairs.
        cpu: CPU seconds per 1,000 jobs by process, including the client.
    """

    rate: float
    ratio: float
    cpu: dict[str, float]


def send_bulk(url: str, body: Path) -> float:
    """Send the file and read the responses meanwhile; return the seconds to the last one."""
    parts = urlsplit(url)
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
        f"Content-Type: application/x-ndjson\r\nContent-Length: {body.stat().st_size}\r\n\r\n"
    )
    address = (parts.hostname or "", parts.port or 80)
    with socket.create_connection(address) as sock, body.open("rb") as file:
        started = time.perf_counter()
        sock.sendall(head.encode())
        sender = threading.Thread(target=sock.sendfile, args=(file,))
        sender.start()
        buffer = bytearray(RECEIVE_BYTES)
        while sock.recv_into(buffer):
            pass
        sender.join()
        return time.perf_counter() - started


def measure_bulk(stack: Headrace, bare: str, jobs: int, rounds: int) -> Bulk:
    """Run rounds in turn with the bare route. Every job must be queued."""
    rates, ratios, client_s, cpu = [], [], 0.0, stack.cpu()
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder) / "body.ndjson"
        body.write_bytes(LINE * jobs)
        suspend(stack.worker.pid)
        try:
            cpu.start()
            for done in range(1, rounds + 1):
                client_s -= time.process_time()
                seconds = send_bulk(stack.url, body)
                client_s += time.process_time()
                with stack.redis.client() as client:
                    queued = client.llen("headrace.echo")
                if queued != done * jobs:
                    raise RuntimeError(f"{queued} jobs are queued of {done * jobs}")
                rates.append(jobs / seconds)
                ratios.append(rates[-1] / run_load(bare, b'{"x": 1}', 64, BARE_S).rate)
            spent = cpu.per_1000(jobs * rounds)
            spent["client"] = client_s / (jobs * rounds) * 1000
        finally:
            os.kill(stack.worker.pid, signal.SIGCONT)
    wait_until(stack.idle, "the backlog is drained", timeout_s=300)
    return Bulk(statistics.median(rates), statistics.median(ratios), spent)


def main() -> None:
    """Print the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        bare_fastapi(Path(folder)) as (bare, _),
        Headrace(events=False) as stack,
    ):
        found = measure_bulk(stack, bare, options.jobs, options.rounds)
    print(f"bulk submit: {found.rate:,.0f} jobs per second, {found.ratio:.1f} times the bare route")
    print("CPU s per 1,000 jobs:", ", ".join(f"{k} {v:.3f}" for k, v in found.cpu.items()))


if __name__ == "__main__":
    main()
