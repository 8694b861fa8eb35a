"""Submit and wait, compared with TorchServe: `python -m benchmarks.torchserve --pid PID`.

TorchServe must be running with an echo model at batch size 32 (see docs/performance.md); PID is its
process. Both receive the same body on 64 keep-alive connections, in turn. Their CPU is that of all
their processes: for Headrace the API, Redis with AOF everysec, the worker and the model process;
for TorchServe its frontend and its workers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Final

import psutil

from benchmarks.echo import BODY, WAIT
from benchmarks.load import Load, generator, run_load
from benchmarks.stack import Cpu, Headrace
from benchmarks.tables import Table, write_tables

URL: Final = "http://127.0.0.1:8080/predictions/echo"
CONNECTIONS: Final = 64
#: Time for both to end their requests, so that the CPU counts for the right one.
QUIET_S: Final = 0.5


@dataclass(frozen=True)
class Served:
    """A load, and the CPU seconds per 1,000 requests by part."""

    load: Load
    cpu: dict[str, float]

    @property
    def cpu_s(self) -> float:
        """The sum of all parts."""
        return sum(self.cpu.values())


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def serve(url: str, cpu: Cpu, seconds: float, connections: int, prefer: str = "") -> Served:
    """Run one load.

    Raises:
        RuntimeError: requests failed.
    """
    cpu.start()
    load = run_load(url, BODY, connections, seconds, prefer)
    if load.bad or not load.requests:
        raise RuntimeError(f"{load.bad} of {load.requests} requests to {url} failed")
    time.sleep(QUIET_S)
    return Served(load, cpu.per_1000(load.requests))


def compare(
    stack: Headrace, url: str, pid: int, seconds: float, rounds: int
) -> dict[str, list[Served]]:
    """Run loads on both in turn; the first of a round alternates."""
    sides = {
        "Headrace": (stack.submit_url, stack.cpu(), WAIT),
        "TorchServe": (url, Cpu({"all": tree(pid)}), ""),
    }
    found: dict[str, list[Served]] = {name: [] for name in sides}
    for target, _, prefer in sides.values():
        run_load(target, BODY, CONNECTIONS, min(seconds, 3), prefer)
    for number in range(rounds):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            target, cpu, prefer = sides[name]
            found[name].append(serve(target, cpu, seconds, CONNECTIONS, prefer))
    return found


def show(found: dict[str, list[Served]], alone: dict[str, Load]) -> Table:
    """Return the table of medians, and of the medians of the pairs' ratios."""
    table = Table("", *found, "Headrace's to TorchServe's, median of the pairs")
    ours, theirs = found.values()
    for name, part, digits in (
        ("requests a second, 64 connections", "rate", 0),
        ("p50, ms", "p50_ms", 1),
        ("p99, ms", "p99_ms", 1),
    ):
        pairs = [
            (getattr(a.load, part), getattr(b.load, part))
            for a, b in zip(ours, theirs, strict=True)
        ]
        table.add(name, *_row(pairs, digits))
    pairs = [(a.cpu_s, b.cpu_s) for a, b in zip(ours, theirs, strict=True)]
    table.add("CPU s per 1,000", *_row(pairs, 3))
    one, other = (load.p50_ms for load in alone.values())
    table.add("one connection, p50, ms", *_row([(one, other)], 2))
    return table


def _row(pairs: list[tuple[float, float]], digits: int) -> tuple[str, str, str]:
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    return f"{ours:,.{digits}f}", f"{theirs:,.{digits}f}", f"{ratio:.2f}"


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=URL, help="URL of TorchServe's predictions")
    parser.add_argument("--pid", type=int, required=True, help="id of the torchserve process")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--seconds", type=float, default=6, help="length of each load")
    parser.add_argument("--rounds", type=int, default=5, help="loads of each")
    options = parser.parse_args()
    with Headrace(events=False) as stack:
        found = compare(stack, options.url, options.pid, options.seconds, options.rounds)
        alone = {
            "Headrace": run_load(stack.submit_url, BODY, 1, 3, WAIT),
            "TorchServe": run_load(options.url, BODY, 1, 3),
        }
    table = show(found, alone)
    parts = [one.cpu for one in found["Headrace"]]
    spread = ", ".join(
        f"{name} {statistics.median(cpu[name] for cpu in parts):.3f}" for name in parts[0]
    )
    description = f"load by {generator()}; {options.rounds} loads of {options.seconds:g} s each."
    print(f"Headrace's CPU s per 1,000: {spread}")
    if options.write:
        write_tables("torchserve", f"{description} Headrace's CPU: {spread}.", table)


if __name__ == "__main__":
    main()
