"""The generator of `headrace bench` against ab, in turns, on a bare server.

    python -m benchmarks.operation.bench_against_ab

The server answers at once, or after 5 ms. So the rates are those of the generators, and the
latencies are known. The ratios are of rounds that ran one after the other.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from typing_extensions import override

from extensions.tuning.bench.load.plan import Plan
from extensions.tuning.bench.load.processes import run_generators
from extensions.tuning.bench.load.scenarios import Scenario
from extensions.tuning.bench.load.targets import Input, target_for
from extensions.tuning.bench.statistics import spread
from headrace.server.ports import free_port

ROUNDS = 5
REQUESTS = 20_000
ANSWER = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok"
BODY = b'{"x": 1}'


class Bare(asyncio.Protocol):
    """The server's side of a connection."""

    delay_s = 0.0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    @override
    def data_received(self, data: bytes) -> None:
        # A request of this benchmark is one packet, and ends with its body.
        if not data.endswith(BODY):
            return
        if self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, self.answer)
        else:
            self.answer()

    def answer(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(ANSWER)


def serve(port: int, delay_s: float) -> None:
    import uvloop

    async def run() -> None:
        Bare.delay_s = delay_s
        server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(run())


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ab(port: int, connections: int, requests: int) -> tuple[float, float, float, float]:
    """Rate, p50 and p99 in ms, and CPU in microseconds a request."""
    with tempfile.TemporaryDirectory() as folder:
        body, times = Path(folder) / "body", Path(folder) / "times"
        body.write_bytes(BODY)
        before = children_cpu_s()
        done = subprocess.run(
            ["ab", "-q", "-k", "-c", str(connections), "-n", str(requests), "-p", str(body),
             "-T", "application/json", "-g", str(times), f"http://127.0.0.1:{port}/"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        rate = float(re.search(r"Requests per second:\s+([\d.]+)", done.stdout)[1])  # type: ignore[index]
        # The percentiles that ab prints are whole milliseconds.
        shown = re.findall(r"^\s+(50|99)%\s+(\d+)", done.stdout, re.MULTILINE)
        p50, p99 = (float(value) for _, value in shown)
    return rate, p50, p99, (children_cpu_s() - before) / requests * 1e6


def ours(port: int, connections: int, requests: int) -> tuple[float, float, float, float]:
    target = target_for(
        "torchserve", f"http://127.0.0.1:{port}", "m", [Input(BODY, "application/json")]
    )
    scenario = Scenario(kind="closed", concurrency=connections, requests=requests)
    sent, _ = run_generators(Plan(target=target, scenario=scenario, duration_s=3600, timeout_s=60))
    latency = spread([row.latency_ms for row in sent.rows])
    length_s = max(row.answered_s for row in sent.rows)
    return len(sent.rows) / length_s, latency.p50, latency.p99, sent.cpu_s / requests * 1e6


def compare(title: str, delay_s: float, connections: int, requests: int) -> None:
    port = free_port()
    server = multiprocessing.Process(target=serve, args=(port, delay_s), daemon=True)
    server.start()
    time.sleep(1)
    rows = [
        (ours(port, connections, requests), ab(port, connections, requests)) for _ in range(ROUNDS)
    ]
    server.terminate()
    server.join()
    print(title)
    for index, name in enumerate(("rate/s", "p50 ms", "p99 ms", "CPU µs a request")):
        mine = statistics.median(one[index] for one, _ in rows)
        other = statistics.median(two[index] for _, two in rows)
        ratios = [one[index] / two[index] for one, two in rows if two[index]]
        ratio = f"{statistics.median(ratios):.2f}" if ratios else "-"
        print(f"  {name:<18} bench {mine:>9.2f}   ab {other:>9.2f}   ratio {ratio}")


def main() -> None:
    if shutil.which("ab") is None:
        sys.exit("ab is not installed; Debian has it in apache2-utils")
    compare("a server that answers at once, closed:8", 0.0, 8, REQUESTS)
    compare("a server that answers after 5 ms, closed:8", 0.005, 8, REQUESTS // 5)
    compare("a server that answers after 20 ms, closed:64", 0.020, 64, REQUESTS // 2)


if __name__ == "__main__":
    main()
