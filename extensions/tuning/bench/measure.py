"""The calls that measure: `measure` for given loads, `find_peak` for the highest rate.

target = target_for("headrace", url, "digits", inputs)
found = measure([scenario_of("server", rate=50)], target, objective=objective_of("p99=100ms"))
peak = find_peak(target, objective_of("p99=100ms")).peak
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from extensions.tuning.bench import statistics
from extensions.tuning.bench.environment import environment
from extensions.tuning.bench.load.plan import Cut, Plan, Sent
from extensions.tuning.bench.load.probe import Probe
from extensions.tuning.bench.load.processes import run_generators
from extensions.tuning.bench.load.rows import Row
from extensions.tuning.bench.load.scenarios import Scenario
from extensions.tuning.bench.load.targets import Target
from extensions.tuning.bench.measurement import Load, Measurement, Objective, Peak, Usage
from extensions.tuning.bench.summary import summarise
from extensions.tuning.bench.usage import Meter, metered, processes_of
from extensions.tuning.machine import load_average
from headrace.errors import InvalidRequest

#: The ratio, at the end, of the lowest rate that missed the objective to the highest that met it.
PRECISION: Final = 1.05
#: The most loads of a search.
LOADS_MAX: Final = 40
#: A load of a search that has too few requests, or that the generator spoilt, is sent again.
TRIES: Final = 3
#: How often a search makes the rate smaller, if the first one misses the objective.
HALVINGS_MAX: Final = 6
#: The lowest rate of a search, in requests a second.
_LOWEST: Final = 0.01
#: What the description of a model has besides options.
_NO_OPTIONS: Final = frozenset(
    {
        "name", "version", "queue", "state", "ready_replicas", "versions", "workers", "error",
        "unserved", "inputs", "outputs", "traffic",
    }
)  # fmt: skip


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How loads are sent.

    Attributes:
        duration_s: how long requests are due.
        warm_up_s: what is left out at the start; None finds it.
        seed: of the arrivals; each load has another one that follows from it.
        longest_s: a search does not lower its rate to one whose load takes longer.
        on_begin: called with the length of each load before it begins, in seconds.
        on_measured: called with all that is measured, after each load.
        on_rows: called with the index and the rows of each load.
    """

    duration_s: float = 30.0
    warm_up_s: float | None = None
    timeout_s: float = 60.0
    processes: int = 1
    seed: int = 1
    stop_early: bool = False
    longest_s: float = math.inf
    on_begin: Callable[[float], None] | None = None
    on_load: Callable[[Load], None] | None = None
    on_measured: Callable[[Measurement], None] | None = None
    on_rows: Callable[[int, Sequence[Row]], None] | None = None


def check_warm_up(options: LoadOptions, scenarios: Sequence[Scenario] = ()) -> None:
    """Refuse a warm-up that is as long as a load. The scenario `offline` has no warm-up.

    Raises:
        InvalidRequest: it leaves nothing to measure.
    """
    warm_up_s, duration_s = options.warm_up_s, options.duration_s
    if warm_up_s is None or (scenarios and all(one.kind == "offline" for one in scenarios)):
        return
    if not 0 <= warm_up_s < duration_s:
        raise InvalidRequest(
            f"a warm-up of {warm_up_s:g} s leaves nothing of a load of {duration_s:g} s to measure",
            hint="make the warm-up shorter, or the duration longer",
        )


class _Session:
    """The loads of one measurement."""

    def __init__(
        self, target: Target, options: LoadOptions, objective: Objective | None, name: str
    ) -> None:
        self._target = target
        self._options = options
        self._objective = objective
        self._name = name
        self._began = time.time()
        self.loads: list[Load] = []
        self.probe = Probe(target, options.timeout_s)
        self.probe.lone_latency_s()
        model = self.probe.described()
        workers = model.get("workers") or []
        self._version = target.version or str(model.get("version", ""))
        self._model_options = {
            key: value
            for key, value in model.items()
            if key not in _NO_OPTIONS and value is not None
        }
        self._parts = processes_of(target, workers)
        self._environment = environment(self._model_options, server_here=bool(self._parts))

    def run(self, scenario: Scenario, duration_s: float | None = None) -> Load:
        options = self._options
        self.probe.wait_until_idle()
        length_s = duration_s or options.duration_s
        if options.on_begin is not None:
            options.on_begin(length_s)
        plan = Plan(
            target=self._target, scenario=scenario, duration_s=length_s,
            timeout_s=options.timeout_s, seed=options.seed * 7919 + len(self.loads),
            cut=self._cut(scenario, length_s),
        )  # fmt: skip
        started_at = time.time()
        with metered(self._parts) as meter:
            sent, start_at = run_generators(plan, options.processes)
        load = summarise(
            scenario, sent, objective=self._objective, warm_up_s=options.warm_up_s,
            started_at=started_at,
        )  # fmt: skip
        load = msgspec.structs.replace(load, usage=_usage(load, sent, meter, start_at))
        if options.on_rows is not None:
            options.on_rows(len(self.loads), sent.rows)
        self.loads.append(load)
        if options.on_load is not None:
            options.on_load(load)
        return load

    def _cut(self, scenario: Scenario, length_s: float) -> Cut | None:
        objective = self._objective
        if objective is None or not self._options.stop_early or not scenario.rate:
            return None
        warm_up_s = self._options.warm_up_s
        after_s = min(length_s / 4, 2.0) if warm_up_s is None else warm_up_s
        expected = math.ceil(scenario.rate * (length_s - after_s))
        most = statistics.refuting_late(expected, objective)
        return Cut(after_s, objective.latency_ms, most)

    def measurement(self, peak: Peak | None = None) -> Measurement:
        target = self._target
        return Measurement(
            name=self._name or target.model,
            model=target.model,
            version=self._version,
            options=self._model_options,
            environment={**self._environment, "load_after": load_average()},
            protocol=target.protocol,
            url=target.url,
            started_at=datetime.fromtimestamp(self._began, UTC).isoformat(timespec="seconds"),
            input=target.input,
            objective=self._objective,
            loads=list(self.loads),
            peak=peak,
        )


def _usage(load: Load, sent: Sent, meter: Meter | None, start_at: float) -> dict[str, Usage]:
    """Return what the generator and the server's parts used during the steady part."""
    share = min(1.0, load.duration_s / sent.length_s) if sent.length_s > 0 else 1.0
    client = Usage(cpu_s=sent.all_cpu_s * share, memory_mb=sent.memory_mb, processes=sent.processes)
    if meter is None:
        return {"client": client}
    from_s = start_at + load.warm_up_s
    return {"client": client, **meter.usage(from_s, from_s + load.duration_s)}


def priced(found: Measurement, price_per_hour: float, currency: str = "") -> Measurement:
    """Return a measurement with the cost of 1,000 results.

    The rate is the peak, else the best one of a load that counts and met the objective.
    """
    met = [
        load.rate
        for load in found.loads
        if not load.refused and (load.verdict is None or load.verdict.met)
    ]
    rate = found.peak.rate if found.peak is not None else max(met, default=0.0)
    cost = price_per_hour / (rate * 3600) * 1000 if rate else None
    return msgspec.structs.replace(
        found, price_per_hour=price_per_hour, cost_per_1000=cost, currency=currency
    )


def measure(
    scenarios: Sequence[Scenario],
    target: Target,
    options: LoadOptions | None = None,
    *,
    objective: Objective | None = None,
    name: str = "",
) -> Measurement:
    """Send loads, one after the other, and return what came of them.

    Before each load, a lone request must be answered as fast as the first one was. So no load runs
    into the queue that another one has left.

    Args:
        objective: what the requests must meet; each load then has a verdict.

    Raises:
        InvalidRequest: the warm-up leaves nothing to measure.
        ServerUnreachable: the server does not answer.
        RequestError: it refuses the first request.
        NotIdle: the server has other work.
    """
    chosen = options or LoadOptions()
    check_warm_up(chosen, scenarios)
    session = _Session(target, chosen, objective, name)
    for scenario in scenarios:
        session.run(scenario)
        if chosen.on_measured is not None:
            chosen.on_measured(session.measurement())
    return session.measurement()


def find_peak(
    target: Target,
    objective: Objective,
    options: LoadOptions | None = None,
    *,
    start: float = 0.0,
    at_least: float = 0.0,
    precision: float = PRECISION,
    growth: float = 2.0,
    name: str = "",
) -> Measurement:
    """Return the highest rate of Poisson arrivals that meets an objective, as `peak`.

    The rate grows until the objective is missed, or shrinks until it is met, then it is bisected.
    A load that misses it is stopped early, and the lowest rate that missed it is sent again. A rate
    counts as met only if the load is steady, because a queue that grows misses every objective
    later. A load that is too short to confirm the objective is repeated for longer. So is one that
    meets it and is not steady, and one that the generator spoilt.

    Args:
        options: how long each load is, at least; `stop_early` is always on.
        start: the first rate, requests a second; 0 takes that of a lone client.
        at_least: if this rate misses the objective, the search ends there and the peak is 0.
        precision: the search ends when the ratio of a rate that missed the objective to the one
            that met it is at most this.
        growth: the factor by which the rate grows, or shrinks, until the peak is between two rates.

    Raises:
        HeadraceError: as `measure`.
    """
    chosen = msgspec.structs.replace(options or LoadOptions(), stop_early=True)
    check_warm_up(chosen)
    session = _Session(target, chosen, objective, name)
    search = PeakSearch(session, objective, chosen)
    if at_least > 0 and not search.met(at_least):
        return search.result()
    lone_rate = 1 / max(session.probe.lone_latency_s(), 1e-4)
    search.bracket(start or at_least * growth or lone_rate, growth)
    search.bisect(precision)
    search.confirm(growth, precision)
    return search.result()


class PeakSearch:
    """A search for the peak: `low` met the objective, `high` did not."""

    def __init__(self, session: _Session, objective: Objective, options: LoadOptions) -> None:
        self._session = session
        self._objective = objective
        self._options = options
        self.low = 0.0
        self.high: float | None = None
        self._spoilt: float | None = None

    def met(self, rate: float) -> bool:
        """Send a load of this rate, and return whether it met the objective."""
        needed = statistics.needed_requests(1, self._objective)
        length_s = self._options.duration_s
        for _ in range(TRIES):
            length_s = max(length_s, self._length_s(rate, needed))
            load = self._session.run(Scenario(kind="server", rate=rate), length_s)
            self._report()
            verdict = load.verdict
            # The generator's delay only adds to latencies, so it spoils no load that met.
            if verdict is None or (verdict.met and load.steady):
                break
            if load.refused and load.succeeded:
                continue
            if load.cut:
                break
            if verdict.met:
                # Chance moves the medians of a short load; a queue that grows shows in a long one.
                length_s *= 2
                continue
            if verdict.refuted:
                break
            needed = verdict.needed
        met = verdict is not None and verdict.met and load.steady
        if met:
            self.low = max(self.low, rate)
        else:
            self.high = rate if self.high is None else min(self.high, rate)
            if verdict is not None and not verdict.fair and self.high == rate:
                self._spoilt = rate
        self._report()
        return met

    def _length_s(self, rate: float, needed: int) -> float:
        # A quarter more than needed, for the warm-up and for chance.
        return 1.25 * needed / rate + 2.0

    def _report(self) -> None:
        if self._options.on_measured is not None:
            self._options.on_measured(self.result())

    def bracket(self, rate: float, growth: float) -> None:
        """Change the rate by a factor until one meets the objective and one does not."""
        if self.met(rate):
            self._grow(growth)
            return
        if self.low:  # a lower rate has met it before
            return
        if self._session.probe.lone_latency_s() * 1000 > self._objective.latency_ms:
            # No rate is so low that a request is faster than on an idle server.
            return
        for _ in range(HALVINGS_MAX):
            rate /= growth
            length_s = self._length_s(rate, statistics.needed_requests(1, self._objective))
            if rate < _LOWEST or length_s > self._options.longest_s or self.met(rate):
                return
            # After a disturbance the peak can be far below where it was before.
            growth = min(growth * growth, max(growth, 2.0))

    def _grow(self, growth: float) -> None:
        while self.high is None and len(self._session.loads) < LOADS_MAX:
            self.met(self.low * growth)

    def bisect(self, precision: float) -> None:
        """Halve the distance until it is small enough."""
        while self.low and self.high is not None and self.high > self.low * precision:
            if len(self._session.loads) >= LOADS_MAX:
                return
            self.met(math.sqrt(self.low * self.high))

    def confirm(self, growth: float, precision: float) -> None:
        """Send the lowest rate that missed again: a disturbance may have been the cause."""
        while self.low and self.high is not None and len(self._session.loads) < LOADS_MAX:
            missed, self.high = self.high, None
            if not self.met(missed):
                return
            self._grow(growth)
            self.bisect(precision)

    def result(self) -> Measurement:
        """Return the measurement with its peak."""
        # Where the generator was too slow, the server may be able to do more.
        limited = self.high is not None and self._spoilt == self.high
        high = None if limited else self.high
        return self._session.measurement(
            Peak(rate=self.low, low=self.low, high=high, generator_limited=limited)
        )
