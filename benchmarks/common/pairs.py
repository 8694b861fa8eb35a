"""Loads in pairs: of the native route, and of another one that does the same."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from benchmarks.common.http_load import Load, generator, run_load
from benchmarks.common.systems import Headrace

CONNECTIONS: Final = 64


class Way(NamedTuple):
    """A route, and what is sent to it; the fields are those of `run_load`."""

    path: str
    body: bytes
    prefer: str = ""
    content_type: str = "application/json"
    header: tuple[str, str] = ("", "")


class Measured(NamedTuple):
    """A load, and the CPU seconds of each part of the system per 1,000 requests."""

    load: Load
    cpu_s: Mapping[str, float]


class Pair(NamedTuple):
    """The loads of one round."""

    native: Measured
    ours: Measured


def measure_pairs(
    running: Headrace, native: Way, ours: Way, seconds: float, rounds: int
) -> list[Pair]:
    """Return pairs of loads, of which each way begins every other one.

    Raises:
        RuntimeError: requests failed.
    """
    pairs = []
    for number in range(-1, rounds):
        found: dict[Way, Measured] = {}
        for way in (native, ours) if number % 2 else (ours, native):
            cpu = running.cpu()
            cpu.start()
            load = run_load(running.url + way.path, way.body, CONNECTIONS, seconds, *way[2:])
            if load.bad or not load.requests:
                raise RuntimeError(f"{load.bad} of {load.requests} requests to {way.path} failed")
            found[way] = Measured(load, cpu.per_1000(load.requests))
        if number >= 0:  # the first pair warms up
            pairs.append(Pair(found[native], found[ours]))
    return pairs


def medians(pairs: Sequence[Pair], *parts: str) -> tuple[str, ...]:
    """Return both rates, their ratio, and both CPU seconds of these parts, or of all."""

    def cpu(side: Measured) -> float:
        return sum(side.cpu_s[name] for name in parts or side.cpu_s)

    rates = [(pair.native.load.rate, pair.ours.load.rate) for pair in pairs]
    return (
        *(f"{statistics.median(column):.0f}" for column in zip(*rates, strict=True)),
        f"{statistics.median(ours / native for native, ours in rates):.3f}",
        *(f"{statistics.median(map(cpu, column)):.3f}" for column in zip(*pairs, strict=True)),
    )


def arguments_of(description: str | None) -> argparse.Namespace:
    """Read the command line, and print what is measured."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3, help="length of each load")
    parser.add_argument("--rounds", type=int, default=9, help="pairs")
    arguments = parser.parse_args()
    print(f"{CONNECTIONS} connections, {generator()}, {arguments.rounds} pairs")
    return arguments
