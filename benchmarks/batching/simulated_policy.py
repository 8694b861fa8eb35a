"""The policy against a fixed window, simulated.

    python -m benchmarks.batching.simulated_policy [--write]

The batcher does not read the clock. So hours of arrivals can be simulated in seconds, the same for
both policies, on a device of which only the batch time is left. Queue, worker and processes cost
nothing here; `benchmarks.batching.policy` measures everything together.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.batching.fixed_window import FixedWindow
from benchmarks.common.tables import Table, write_tables
from workers.batching.batcher import Batcher, BatchPolicy, Leave

NEVER: Final = float("inf")
#: The time of a batch varies by up to this share.
NOISE: Final = 0.05
#: The gap between items of a burst, and their average number.
BURST_GAP_S: Final = 0.0015
BURST_SIZE: Final = 8


class Device(NamedTuple):
    """A model on its device: a batch of n takes `fixed_s + n * item_s`; its window is `delay_s`."""

    fixed_s: float
    item_s: float
    size: int
    delay_s: float

    @property
    def full_rate(self) -> float:
        """Items a second in full batches."""
        return self.size / (self.fixed_s + self.size * self.item_s)


DEVICES: Final = (
    Device(0.020, 0.001, 16, 0.020),
    Device(0.100, 0.001, 64, 0.100),
    Device(0.005, 0.005, 8, 0.010),
    Device(0.001, 0.010, 8, 0.010),
)
LOADS: Final = (0.05, 0.5, 0.95)


@dataclass(eq=False, slots=True)
class Item:
    """An item for the batcher."""

    enqueued_at: float
    step: int = 0
    overdue_at: float = NEVER
    isolated: bool = False
    cost: int = 0
    key: str | None = None


POLICIES: Final[dict[str, type[Batcher[Item]]]] = {
    "policy": Batcher,
    "fixed window": FixedWindow,
}


class Result(NamedTuple):
    """Seconds from arrival to end, and the number of batches."""

    took_s: list[float]
    batches: int

    def percentile_ms(self, percent: int) -> float:
        """Return a percentile of the times, in ms."""
        return statistics.quantiles(self.took_s, n=100)[percent - 1] * 1000


class Simulation:
    """One device with a queue.

    Args:
        policy: decides when batches leave.
        seed: the seed of the noise in batch times.
    """

    def __init__(self, device: Device, policy: type[Batcher[Item]], seed: int) -> None:
        self._device = device
        self._batcher = policy(BatchPolicy(device.size, device.delay_s))
        self._random = random.Random(seed)
        self._queue: deque[Item] = deque()
        self._running: list[Item] = []
        self._began_at, self._ends_at, self._held_until = 0.0, NEVER, NEVER
        self._found: list[float] = []
        self._batches = 0

    def run(self, arrivals: Iterable[float]) -> Result:
        """Simulate these arrivals until all have ended."""
        for at in arrivals:
            self._until(at)
            self._queue.append(Item(at))
            self._act(at)
        self._until(NEVER)
        return Result(self._found, self._batches)

    def _until(self, at: float) -> None:
        """Simulate the time before the next arrival."""
        while (now := min(self._ends_at, self._held_until)) < at:
            if now == self._ends_at:
                self._found += [now - item.enqueued_at for item in self._running]
                self._batcher.latency_model.add(len(self._running), now - self._began_at)
                self._ends_at = NEVER
            self._act(now)

    def _act(self, now: float) -> None:
        self._claim()
        self._held_until = NEVER
        if self._ends_at < NEVER:
            return
        decision = self._batcher.decide(now)
        if isinstance(decision, Leave):
            self._running, self._began_at = decision.items, now
            size = len(decision.items)
            usual_s = self._device.fixed_s + size * self._device.item_s
            self._ends_at = now + usual_s * self._random.uniform(1 - NOISE, 1 + NOISE)
            self._batches += 1
            self._claim()
        elif decision is not None:
            self._held_until = max(decision.until, now + 1e-9)

    def _claim(self) -> None:
        while self._queue and self._batcher.room[0]:
            self._batcher.add(self._queue.popleft())


def lone(rate: float, count: int, seed: int) -> list[float]:
    """Return `count` arrivals at random moments (Poisson), `rate` per second on average."""
    rng, at, moments = random.Random(seed), 0.0, []
    for _ in range(count):
        at += rng.expovariate(rate)
        moments.append(at)
    return moments


def bursts(rate: float, count: int, seed: int) -> list[float]:
    """Return arrivals with the same average rate in bursts at random moments."""
    rng, moments = random.Random(seed), []
    for began_at in lone(rate / BURST_SIZE, count, seed):
        at = began_at
        for _ in range(1 + int(rng.expovariate(1 / (BURST_SIZE - 1)))):
            moments.append(at)
            at += rng.expovariate(1 / BURST_GAP_S)
        if len(moments) >= count:
            break
    return sorted(moments)[:count]


ARRIVALS: Final = {"lone": lone, "in bursts": bursts}


def compare(
    device: Device, load: float, arrivals: str, *, count: int, seeds: int
) -> dict[str, Result]:
    """Return the result of each policy for the same arrivals, over all seeds."""
    found = {}
    for name, policy in POLICIES.items():
        runs = [
            Simulation(device, policy, seed).run(
                ARRIVALS[arrivals](load * device.full_rate, count, seed)
            )
            for seed in range(seeds)
        ]
        took_s = [seconds for run in runs for seconds in run.took_s]
        found[name] = Result(took_s, sum(run.batches for run in runs))
    return found


def main() -> None:
    """Print the table; write it into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--count", type=int, default=2500, help="arrivals of a run")
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    table = Table(
        "a batch of n, ms; arrivals; load", "p50 ms", "p99 ms", "jobs in a batch",
        "p50, p99 to the window's",
    )  # fmt: skip
    for device in DEVICES:
        for arrivals in ARRIVALS:
            for load in LOADS:
                found = compare(device, load, arrivals, count=options.count, seeds=options.seeds)
                ours, window = found["policy"], found["fixed window"]
                shape = f"{device.fixed_s * 1000:g} + {device.item_s * 1000:g} n, {device.size}"
                ratios = [
                    f"{ours.percentile_ms(at) / window.percentile_ms(at):.2f}" for at in (50, 99)
                ]
                table.add(
                    f"{shape}; {arrivals}; {load:.0%}", f"{ours.percentile_ms(50):.1f}",
                    f"{ours.percentile_ms(99):.1f}", f"{len(ours.took_s) / ours.batches:.1f}",
                    ", ".join(ratios),
                )  # fmt: skip
    if options.write:
        description = (
            f"{options.seeds} seeds with {options.count} arrivals each; the window is 20, 100, 10 "
            "and 10 ms."
        )
        write_tables("policy_sim", description, table)


if __name__ == "__main__":
    main()
