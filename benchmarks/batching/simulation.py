"""A simulated device with a queue, for the benchmarks of the policy.

The batcher does not read the clock. So hours of arrivals can be simulated in seconds, the same for
each policy, on a device of which only the batch time is left. Queue, worker and processes cost
nothing here.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple

from workers.batching.batcher import Batcher, BatchPolicy, Leave

NEVER: Final = float("inf")
#: The time of a batch varies by up to this share.
NOISE: Final = 0.05
#: The gap between items of a burst, and their average number.
BURST_GAP_S: Final = 0.0015
BURST_SIZE: Final = 8


class Device(NamedTuple):
    """A model on its device: a batch of n takes `fixed_s + n * item_s`; its window is `delay_s`.

    A batch is padded up to one of `sizes`, if there are some.
    """

    fixed_s: float
    item_s: float
    size: int
    delay_s: float
    sizes: tuple[int, ...] = ()
    replicas: int = 1

    @property
    def full_rate(self) -> float:
        """Items a second in full batches."""
        return self.replicas * self.size / self.batch_s(self.size)

    def batch_s(self, size: int) -> float:
        """Return the seconds of a batch."""
        return self.fixed_s + self.padded(size) * self.item_s

    def padded(self, size: int) -> int:
        """Return the size that runs."""
        return min((allowed for allowed in self.sizes if allowed >= size), default=size)


class Clients(NamedTuple):
    """A closed loop: each client sends its next item after the end of its last one.

    The first answer of a batch brings the next item after `trip_s`, and each further one `each_s`
    later. Each item comes up to about `jitter_s` later than that, and a client thinks `think_s` on
    average (exponential).
    """

    size: int
    trip_s: float = 0.0012
    each_s: float = 0.0001
    jitter_s: float = 0.0002
    think_s: float = 0.0


NOBODY: Final = Clients(0)


@dataclass(eq=False, slots=True)
class Item:
    """An item for the batcher."""

    enqueued_at: float
    step: int = 0
    overdue_at: float = NEVER
    isolated: bool = False
    cost: int = 0
    key: str | None = None
    client: bool = False

    @property
    def ready_at(self) -> float:
        """It is here as soon as it is enqueued."""
        return self.enqueued_at


class Result(NamedTuple):
    """Seconds from arrival to end of the online items, the sizes of batches, and all seconds."""

    took_s: list[float]
    sizes: list[int]
    whole_s: float

    @property
    def batches(self) -> int:
        """How many batches ran."""
        return len(self.sizes)

    @property
    def rate(self) -> float:
        """Online items a second."""
        return len(self.took_s) / self.whole_s

    @property
    def mean_ms(self) -> float:
        """The mean of the times, in ms."""
        return statistics.fmean(self.took_s) * 1000

    def percentile_ms(self, percent: int) -> float:
        """Return a percentile of the times, in ms."""
        return statistics.quantiles(self.took_s, n=100)[percent - 1] * 1000


class Simulation:
    """One device, or several alike, with a queue.

    Args:
        policy: decides when batches leave.
        seed: the seed of the noise in batch times.
        keys: items have one of so many keys at random.
        offline: so many offline items always wait.

    Attributes:
        batcher: it decides when batches leave.
    """

    def __init__(
        self,
        device: Device,
        policy: type[Batcher[Item]],
        seed: int,
        *,
        keys: int = 0,
        offline: int = 0,
    ) -> None:
        self.device = device
        limits = BatchPolicy(device.size, device.delay_s, keyed=keys > 0, sizes=device.sizes)
        self.batcher = policy(limits)
        if isinstance(self.batcher, KnowsFuture):
            self.batcher.simulation = self
        self._random = random.Random(seed)
        self._keys = keys
        self._queue: deque[Item] = deque()
        self._offline: deque[Item] = deque(Item(0.0, 9) for _ in range(offline))
        # Arrivals, and ends of batches: when, a number, the item, or the batch with its beginning.
        self._events: list[tuple[float, int, Item | tuple[list[Item], float]]] = []
        self._number = 0
        self._busy, self._held_until = 0, NEVER
        self._clients = NOBODY
        self._took: list[float] = []
        self._sizes: list[int] = []
        self._stop_at = NEVER

    def run(
        self, arrivals: Iterable[float], clients: Clients = NOBODY, until_s: float = NEVER
    ) -> Result:
        """Simulate these arrivals and clients; clients send nothing after `until_s`."""
        self._clients, self._stop_at = clients, until_s
        for at in arrivals:
            self._arrive(Item(at))
        for _ in range(clients.size):
            self._arrive(Item(self._random.uniform(0, 0.002), client=True))
        now = 0.0
        while (at := min(self._events[0][0] if self._events else NEVER, self._held_until)) < NEVER:
            now = at
            if self._events and self._events[0][0] <= now:
                _, _, what = heappop(self._events)
                if isinstance(what, Item):
                    self._queue.append(what)
                else:
                    self._end(*what, now)
            self._act(now)
        return Result(self._took, self._sizes, now)

    def upcoming(self) -> list[float]:
        """Return when the next items come, as far as that is decided."""
        return sorted(at for at, _, what in self._events if isinstance(what, Item))

    def _arrive(self, item: Item) -> None:
        if self._keys:
            item.key = str(self._random.randrange(self._keys))
        self._push(item.enqueued_at, item)

    def _push(self, at: float, what: Item | tuple[list[Item], float]) -> None:
        self._number += 1
        heappush(self._events, (at, self._number, what))

    def _end(self, items: list[Item], began_at: float, now: float) -> None:
        self._busy -= 1
        online = [item for item in items if not item.step]
        self._took += [now - item.enqueued_at for item in online]
        self.batcher.latency_model.add(self.device.padded(len(items)), now - began_at)
        self.batcher.batch_ended(len(online), now, now - began_at)
        self._offline.extend(Item(now, 9) for item in items if item.step and now < self._stop_at)
        at = now + self._clients.trip_s
        for item in online:
            if item.client and now < self._stop_at:
                at += self._clients.each_s
                late_s = 0.0
                for mean_s in (self._clients.jitter_s, self._clients.think_s):
                    late_s += self._random.expovariate(1 / mean_s) if mean_s else 0.0
                self._arrive(Item(at + late_s, client=True))

    def _act(self, now: float) -> None:
        self._held_until = NEVER
        self._claim()
        while self._busy < self.device.replicas:
            decision = self.batcher.decide(now)
            if not isinstance(decision, Leave):
                if decision is not None:
                    self._held_until = max(decision.until, now + 1e-9)
                return
            size = len(decision.items)
            self._sizes.append(size)
            self._busy += 1
            took_s = self.device.batch_s(size) * self._random.uniform(1 - NOISE, 1 + NOISE)
            self._push(now + took_s, (decision.items, now))
            self._claim()

    def _claim(self) -> None:
        while self._queue and self.batcher.room[0]:
            self.batcher.add(self._queue.popleft())
        while self._offline and self.batcher.room[-1]:
            self.batcher.add(self._offline.popleft())


class KnowsFuture(Batcher[Item]):
    """A batcher that knows when the next items come.

    Attributes:
        simulation: what it is part of.
    """

    simulation: Simulation


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


def together(results: Sequence[Result]) -> Result:
    """Return several runs as one."""
    took_s = [seconds for run in results for seconds in run.took_s]
    sizes = [size for run in results for size in run.sizes]
    return Result(took_s, sizes, sum(run.whole_s for run in results))
