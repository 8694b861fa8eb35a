"""The policy against a fixed window and against full knowledge, simulated.

    python -m benchmarks.batching.simulated_policy [--write]

First, arrivals that do not depend on the device: lone ones (Poisson) and bursts. Then closed loops,
alone and mixed with such arrivals. `benchmarks.batching.policy` measures everything together.
"""

from __future__ import annotations

import argparse
from typing import Final, NamedTuple

from benchmarks.batching.fixed_window import FixedWindow
from benchmarks.batching.full_knowledge import policies
from benchmarks.batching.simulation import (
    Clients,
    Device,
    Item,
    Result,
    Simulation,
    bursts,
    lone,
    together,
)
from benchmarks.common.tables import Table, write_tables
from workers.batching.batcher import Batcher

DEVICES: Final = (
    Device(0.020, 0.001, 16, 0.020),
    Device(0.100, 0.001, 64, 0.100),
    Device(0.005, 0.005, 8, 0.010),
    Device(0.001, 0.010, 8, 0.010),
)
LOADS: Final = (0.05, 0.5, 0.95)
ARRIVALS: Final = {"lone": lone, "in bursts": bursts}
POLICIES: Final[dict[str, type[Batcher[Item]]]] = {
    "policy": Batcher,
    "fixed window": FixedWindow,
}

#: A device of which the batches take the same time, at each size; and one that gains nothing.
CONSTANT: Final = Device(0.020, 0.0, 8, 0.010)
SHORT: Final = Device(0.007, 0.0, 8, 0.010)
LINEAR: Final = Device(0.0, 0.010, 8, 0.010)


class Case(NamedTuple):
    """A closed loop.

    Attributes:
        load: arrivals at random besides the clients, as a share of the device's highest rate.
    """

    device: Device
    clients: Clients
    keys: int = 0
    offline: int = 0
    load: float = 0.0


LOOPS: Final[dict[str, Case]] = {
    **{
        f"{name}, {count} clients": Case(device, Clients(count))
        for name, device in (("20 ms", CONSTANT), ("7 ms", SHORT), ("10 n ms", LINEAR))
        for count in (1, 2, 4, 8, 10, 12, 16, 32, 64)
    },
    "20 + 1 n ms, 10 clients": Case(DEVICES[0], Clients(10)),
    "20 + 1 n ms, 10 clients, sizes 4, 8, 16": Case(
        DEVICES[0]._replace(sizes=(4, 8, 16)), Clients(10)
    ),
    "20 ms, 10 clients, 3 ms of thought": Case(CONSTANT, Clients(10, think_s=0.003)),
    "20 ms, 10 clients, a trip of 3 ms": Case(CONSTANT, Clients(10, trip_s=0.003)),
    "7 ms, 8 clients, a trip of 3 ms": Case(SHORT, Clients(8, trip_s=0.003)),
    "7 ms, 10 clients, a trip of 5 ms": Case(SHORT, Clients(10, trip_s=0.005)),
    "7 ms, 12 clients, a trip of 5 ms": Case(SHORT, Clients(12, trip_s=0.005)),
    "20 ms, 10 clients, 2 keys": Case(CONSTANT, Clients(10), keys=2),
    "20 ms, 8 clients, 2 replicas": Case(CONSTANT._replace(replicas=2), Clients(8)),
    "20 ms, 20 clients, 2 replicas": Case(CONSTANT._replace(replicas=2), Clients(20)),
    "20 + 1 n ms, 4 clients, offline jobs": Case(DEVICES[0], Clients(4), offline=32),
    "20 + 1 n ms, 4 clients and arrivals of 5 %": Case(DEVICES[0], Clients(4), load=0.05),
    "20 + 1 n ms, 10 clients and arrivals of 5 %": Case(DEVICES[0], Clients(10), load=0.05),
}


def compare(
    device: Device, load: float, arrivals: str, *, count: int, seeds: int
) -> dict[str, Result]:
    """Return the result of each policy for the same arrivals, over all seeds."""
    return {
        name: _open(policy, device, load, arrivals, count, seeds)
        for name, policy in POLICIES.items()
    }


def least_mean_ms(device: Device, load: float, arrivals: str, *, count: int, seeds: int) -> float:
    """Return the least mean time of the policies with full knowledge, in ms."""
    return min(
        _open(policy, device, load, arrivals, count, seeds).mean_ms
        for policy in policies(device.size)
    )


def _open(
    policy: type[Batcher[Item]], device: Device, load: float, arrivals: str, count: int, seeds: int
) -> Result:
    return together(
        [
            Simulation(device, policy, seed).run(
                ARRIVALS[arrivals](load * device.full_rate, count, seed)
            )
            for seed in range(seeds)
        ]
    )


def loop(case: Case, policy: type[Batcher[Item]], seconds: float) -> Result:
    """Return the result of a closed loop that runs so long."""
    rate = case.load * case.device.full_rate
    arrivals = lone(rate, int(rate * seconds), 0) if rate else []
    simulation = Simulation(case.device, policy, 0, keys=case.keys, offline=case.offline)
    return simulation.run(arrivals, case.clients, seconds)


def best_rate(case: Case, seconds: float) -> float:
    """Return the highest rate of the policies with full knowledge."""
    size = min(case.device.size, case.clients.size + 1)
    return max(loop(case, policy, seconds).rate for policy in policies(size))


def open_table(count: int, seeds: int) -> Table:
    """Return the table of arrivals that do not depend on the device."""
    table = Table(
        "a batch of n, ms; arrivals; load", "p50 ms", "p99 ms", "jobs in a batch",
        "p50, p99 to the window's", "mean of full knowledge to ours",
    )  # fmt: skip
    for device in DEVICES:
        for arrivals in ARRIVALS:
            for load in LOADS:
                found = compare(device, load, arrivals, count=count, seeds=seeds)
                best_ms = least_mean_ms(device, load, arrivals, count=count, seeds=seeds)
                ours, window = found["policy"], found["fixed window"]
                shape = f"{device.fixed_s * 1000:g} + {device.item_s * 1000:g} n, {device.size}"
                ratios = [
                    f"{ours.percentile_ms(at) / window.percentile_ms(at):.2f}" for at in (50, 99)
                ]
                table.add(
                    f"{shape}; {arrivals}; {load:.0%}", f"{ours.percentile_ms(50):.1f}",
                    f"{ours.percentile_ms(99):.1f}", f"{len(ours.took_s) / ours.batches:.1f}",
                    ", ".join(ratios), f"{best_ms / ours.mean_ms:.2f}",
                )  # fmt: skip
    return table


def loop_table(seconds: float) -> Table:
    """Return the table of closed loops."""
    table = Table(
        "a batch; closed loop", "jobs/s", "p99 ms", "jobs in a batch", "fixed window, jobs/s",
        "full knowledge, jobs/s", "ours to it",
    )  # fmt: skip
    for name, case in LOOPS.items():
        ours, best = loop(case, Batcher, seconds), best_rate(case, seconds)
        table.add(
            name, f"{ours.rate:.0f}", f"{ours.percentile_ms(99):.1f}",
            f"{sum(ours.sizes) / ours.batches:.1f}", f"{loop(case, FixedWindow, seconds).rate:.0f}",
            f"{best:.0f}", f"{ours.rate / best:.2f}",
        )  # fmt: skip
    return table


def main() -> None:
    """Print the tables; write them into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--count", type=int, default=2500, help="arrivals of a run")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20, help="of a closed loop")
    options = parser.parse_args()
    loops = loop_table(options.seconds)
    at_random = open_table(options.count, options.seeds)
    if options.write:
        description = (
            f"{options.seeds} seeds with {options.count} arrivals each; the window is 20, 100, 10 "
            "and 10 ms."
        )
        write_tables("policy_sim", description, at_random)
        description = (
            f"{options.seconds:g} s of each; 8 jobs in a batch at most, or 16; a delay of 10 ms."
        )
        write_tables("policy_loops", description, loops)


if __name__ == "__main__":
    main()
