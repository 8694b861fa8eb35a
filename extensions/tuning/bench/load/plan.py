"""What a generator does, and what it has seen: the data that its process reads and writes."""

from __future__ import annotations

import msgspec

from extensions.tuning.bench.load.rows import Row
from extensions.tuning.bench.load.scenarios import Scenario
from extensions.tuning.bench.load.targets import Target


class Cut(msgspec.Struct, frozen=True):
    """When a load is stopped, because it can no longer meet its objective.

    Attributes:
        after_s: requests that are due before do not count.
        allowed: the most late requests.
    """

    after_s: float
    latency_ms: float
    allowed: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a generator does.

    Attributes:
        duration_s: how long requests are due.
        timeout_s: how long an answer is waited for.
    """

    target: Target
    scenario: Scenario
    duration_s: float
    timeout_s: float
    seed: int = 0
    cut: Cut | None = None


class Sent(msgspec.Struct):
    """What a generator has done.

    Attributes:
        rows: its requests, in the order in which they ended.
        ticks_s: how late its own timer was, for loads without times of their own.
        length_s: until the last request was due, or it was cut.
        cpu_s: CPU seconds of the process; of several, of the busiest.
        all_cpu_s: CPU seconds of all processes.
        memory_mb: the most memory of all processes, in MiB.
        overrun: requests were due that were not sent, because they were too many.
    """

    rows: list[Row]
    ticks_s: list[float]
    length_s: float
    cpu_s: float
    cut: bool = False
    all_cpu_s: float = 0.0
    memory_mb: float = 0.0
    processes: int = 1
    overrun: bool = False
