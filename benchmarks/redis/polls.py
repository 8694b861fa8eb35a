"""What the polls of a cluster cost: `python -m benchmarks.redis.polls [--pods N] [--write]`.

Two hundred pods each poll one API process once a second, as kubelet and KEDA do: a probe takes a
connection of its own, an autoscaler keeps its connection. CPU is that of the API process and of the
main thread of Redis for one poll, more than without polls. The probe of a worker asks Redis itself,
in a process that starts anew each time. `--write` puts the table into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import httpx2

from benchmarks.common.systems import ROOT, cpu_s
from benchmarks.common.tables import Table, write_tables
from benchmarks.redis.scaling import DOC, Site, Usage, site

PODS: Final = 200
#: Per poll its path, whether it takes a new connection, and how often the chart has it asked.
POLLS: Final = {
    "`GET /live`, a connection each": ("/live", True, 10),
    "`GET /ready`, a connection each": ("/ready", True, 3),
    "`GET …/demand`, kept connections": ("/api/v1/models/echo/demand", False, 10),
}
WORKER_S: Final = 15


class Cost(NamedTuple):
    """Seconds of CPU, and calls of scripts."""

    api_s: float
    redis_s: float
    calls: float

    def less(self, other: Cost) -> Cost:
        """Return the difference."""
        return Cost(*(a - b for a, b in zip(self, other, strict=True)))

    def of(self, count: int) -> Cost:
        """Return one of so many."""
        return Cost(*(value / count for value in self))


def during(running: Site, work: Callable[[], None]) -> Cost:
    """Do something, and return what the API and Redis spent meanwhile."""
    pid, _ = running.apis[0]
    before, api = Usage.read(running.redis), cpu_s(pid)
    work()
    used = Usage.read(running.redis).since(before)
    return Cost(cpu_s(pid) - api, used.main_s, used.calls)


async def poll(url: str, pods: int, seconds: int, *, close: bool) -> None:
    """Poll once a second from each pod, evenly spread."""

    async def pod(number: int) -> None:
        async with httpx2.AsyncClient(timeout=60) as http:
            for turn in range(seconds):
                due = began + number / pods + turn
                await asyncio.sleep(max(0.0, due - loop.time()))
                answer = await http.get(url, headers={"Connection": "close"} if close else {})
                # On a machine that stands still Redis answers too late, and nothing is ready then.
                if answer.status_code not in (200, 503):
                    raise RuntimeError(f"{url}: {answer.text}")

    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*map(pod, range(pods)))
    await asyncio.sleep(max(0.0, began + seconds - loop.time()))


def _poll(url: str, pods: int, seconds: int, *, close: bool) -> None:
    asyncio.run(poll(url, pods, seconds, close=close))


def measure(running: Site, pods: int, seconds: int) -> Table:
    """Return the table."""
    table = Table(
        "poll", "API, µs of CPU", "Redis' main thread", "calls of scripts",
        f"{pods} pods, share of a core",
    )  # fmt: skip
    running.scale(1, 1)
    _, url = running.apis[0]
    idle = during(running, lambda: asyncio.run(asyncio.sleep(seconds)))
    for name, (path, close, every_s) in POLLS.items():
        run = partial(_poll, url + path, pods, seconds, close=close)
        run()
        cost = during(running, run).less(idle).of(pods * seconds)
        table.add(
            name, f"{cost.api_s * 1e6:,.0f}", f"{max(0.0, cost.redis_s) * 1e6:,.0f}",
            f"{max(0.0, cost.calls):.2f}",
            f"{cost.api_s * pods / every_s * 100:.1f} % (every {every_s} s)",
        )  # fmt: skip
    return table


def add_probe(table: Table, running: Site, probes: int) -> None:
    """Add the probe of a worker's pod: what it takes in the pod is no row of the API's."""
    command = [sys.executable, "-m", "headrace", "health", "worker", "--models"]
    environ = {**os.environ, **running.environ}
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)

    def run() -> None:
        for _ in range(probes):
            # A worker that stood still is not ready, and the probe costs the same.
            subprocess.run(
                command, cwd=ROOT, env=environ, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    cost = during(running, run).of(probes)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    own_s = (now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime) / probes
    table.add(
        "`headrace health worker --models`", f"0, in its pod {own_s * 1e6:,.0f}",
        f"{cost.redis_s * 1e6:,.0f}", f"{cost.calls:.2f}",
        f"0, in each pod {own_s / WORKER_S * 100:.1f} % (every {WORKER_S} s)",
    )  # fmt: skip


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="into docs/scaling.md")
    parser.add_argument("--pods", type=int, default=PODS)
    parser.add_argument("--seconds", type=int, default=10, help="length of each measurement")
    options = parser.parse_args()
    with site() as running:
        table = measure(running, options.pods, options.seconds)
        add_probe(table, running, probes=10)
    if options.write:
        description = (
            f"{options.pods} pods each poll one API process once a second, load "
            f"{os.getloadavg()[1]:.1f}; the last column is for the intervals of the chart."
        )
        write_tables("polls", description, table, doc=DOC)


if __name__ == "__main__":
    main()
