"""Inputs per second through the Python client's `map`, with `echo`.

    python -m benchmarks.job_path.client_map

Everything is on one machine, so that the client's CPU time counts too. The last columns are CPU
seconds per thousand inputs by process.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.common.systems import Headrace
from headrace import AsyncClient, Client

WARM_UP = 2000


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of `map`.

    Attributes:
        cpu_per_1000: CPU seconds per thousand inputs, by process.
        peak_mib: the highest memory use of this process so far.
    """

    inputs: int
    seconds: float
    cpu_per_1000: dict[str, float]
    peak_mib: float

    @property
    def per_second(self) -> float:
        return self.inputs / self.seconds


def mapped(url: str, count: int, **options: Any) -> int:
    """Map `count` small inputs with the blocking client; return the number of right results."""
    with Client(url) as client:
        results = client.map("echo", numbers(count), **options)
        return sum(result.value == {"n": result.index} for result in results)


def mapped_async(url: str, count: int, **options: Any) -> int:
    """Do the same with the asyncio client."""

    async def run() -> int:
        async with AsyncClient(url) as client:
            results = client.map("echo", numbers(count), **options)
            return sum([result.value == {"n": result.index} async for result in results])

    return asyncio.run(run())


def numbers(count: int) -> Iterator[dict[str, int]]:
    return ({"n": number} for number in range(count))


def measure(system: Headrace, run: Callable[..., int], count: int, **options: Any) -> Measured:
    """Time one run, which must give every input its own result."""
    cpu = system.cpu()
    cpu.start()
    own = time.process_time()
    started = time.perf_counter()
    right = run(system.url, count, **options)
    seconds = time.perf_counter() - started
    assert right == count, f"{right} results of {count} are right"
    used = {"client": (time.process_time() - own) / count * 1000, **cpu.per_1000(count)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(count, seconds, used, peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    count, rounds = (arguments := parser.parse_args()).inputs, arguments.rounds
    with Headrace(events=False) as system:
        mapped(system.url, WARM_UP)
        for _ in range(rounds):
            for name, run, options in (
                ("Client, in order", mapped, {}),
                ("Client, as they end", mapped, {"ordered": False}),
                ("Client, 100 in flight", mapped, {"in_flight": 100}),
                ("AsyncClient, in order", mapped_async, {}),
            ):
                found = measure(system, run, count, **options)
                used = ", ".join(f"{who} {s:.3f}" for who, s in found.cpu_per_1000.items())
                print(
                    f"{name:24}{found.per_second:8.0f} a second  {used}  {found.peak_mib:.0f} MiB"
                )


if __name__ == "__main__":
    main()
