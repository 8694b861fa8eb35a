"""Compares two measurements. A difference is named only where the intervals do not overlap.

The interval of a rate is that of the measurement. That of a percentile of the latency is between
two order statistics, by the binomial rule, so it assumes no distribution of the latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from extensions.tuning.bench.measurement import Load, Measurement
from extensions.tuning.bench.report.wording import load_name
from headrace.text import NOTHING, number

#: Of the normal distribution, for an interval of 95 %.
_Z: Final = 1.96
_COMPARED: Final = ((50.0, "p50 ms"), (95.0, "p95 ms"), (99.0, "p99 ms"))


class Interval(NamedTuple):
    """A figure between two bounds; without bounds it is not compared."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """The figure with its interval."""
        if self.low is None or self.high is None:
            return number(self.value)
        if math.isinf(self.high):
            return f"{number(self.value)} ({number(self.low)} or more)"
        return f"{number(self.value)} ({number(self.low)} to {number(self.high)})"


class Difference(NamedTuple):
    """One figure of two measurements.

    Attributes:
        load: the load that both have; "" for a figure of the whole run.
        figure: what is compared, with its unit.
        ratio: the second over the first; None if the first is 0.
        better: whether the second is better; None if the intervals overlap or are not known.
    """

    load: str
    figure: str
    before: Interval
    after: Interval
    ratio: float | None
    text: str
    better: bool | None


def compare(before: Measurement, after: Measurement) -> tuple[list[Difference], list[str]]:
    """Return the figures of the loads that both have, and in words what limits the comparison."""
    found = _peaks(before, after)
    others = _by_name(after.loads)
    limits = _limits(before, after)
    compared = set()
    for name, load in _by_name(before.loads).items():
        other = others.get(name)
        if other is None:
            continue
        compared.add(name)
        if refused := next((one.refused for one in (load, other) if one.refused), ""):
            limits.append(f"{name} is not compared, as its figures do not count: {refused}")
            continue
        found += _of_loads(name, load, other)
    alone = [name for name in {**_by_name(before.loads), **others} if name not in compared]
    if alone:
        limits.append(f"only one of the two has the load: {', '.join(alone)}")
    return found, limits


def _by_name(loads: Sequence[Load]) -> dict[str, Load]:
    """Return loads by their names; a repeated one has its number."""
    named: dict[str, Load] = {}
    for load in loads:
        name = base = load_name(load)
        number_ = 1
        while name in named:
            number_ += 1
            name = f"{base} ({number_})"
        named[name] = load
    return named


def _peaks(before: Measurement, after: Measurement) -> list[Difference]:
    one, other = before.peak, after.peak
    if one is None or other is None:
        return []
    return [
        difference(
            "", "peak, requests/s",
            Interval(one.rate, one.low, one.high or math.inf),
            Interval(other.rate, other.low, other.high or math.inf),
            more_is_better=True,
        )
    ]  # fmt: skip


def _of_loads(name: str, load: Load, other: Load) -> list[Difference]:
    rates = [Interval(one.rate, one.rate_low, one.rate_high) for one in (load, other)]
    found = [difference(name, "results/s", *rates, more_is_better=True)]
    if load.succeeded and other.succeeded:
        found += [
            difference(
                name, figure, percentile(load, share), percentile(other, share),
                more_is_better=False,
            )
            for share, figure in _COMPARED
        ]  # fmt: skip
    return found


def percentile(load: Load, percent: float) -> Interval:
    """Return a percentile of the latency of a load, with its interval of 95 % if it has one."""
    value = {50.0: load.latency.p50, 95.0: load.latency.p95, 99.0: load.latency.p99}[percent]
    share, requests = percent / 100, load.succeeded
    spread = _Z * math.sqrt(share * (1 - share) / requests) if requests else 1.0
    low, high = share - spread, share + spread
    # Beyond the slowest request there is no order statistic, so the interval has no end.
    if not load.latency_cdf or low <= 0 or high >= 1:
        return Interval(value)
    below = max((ms for ms, part in load.latency_cdf if part <= low), default=0.0)
    above = min((ms for ms, part in load.latency_cdf if part >= high), default=load.latency.max)
    return Interval(value, min(below, value), max(above, value))


def difference(
    load: str, figure: str, before: Interval, after: Interval, *, more_is_better: bool
) -> Difference:
    """Compare one figure."""
    ratio = after.value / before.value if before.value > 0 else None
    if None in (*before, *after):
        return Difference(load, figure, before, after, ratio, "too few requests", None)
    higher = (after.low or 0.0) > (before.high or 0.0)
    lower = (after.high or 0.0) < (before.low or 0.0)
    if not higher and not lower:
        return Difference(load, figure, before, after, ratio, "no difference", None)
    better = higher is more_is_better
    word = "better" if better else "worse"
    change = "higher" if higher else "lower"
    by = f"{number(abs(ratio - 1) * 100)} % " if ratio is not None else ""
    return Difference(load, figure, before, after, ratio, f"{by}{change}: {word}", better)


def _limits(before: Measurement, after: Measurement) -> list[str]:
    found = []
    if before.model != after.model:
        found.append(f"the models differ: {before.model} and {after.model}")
    if before.input != after.input:
        found.append(f"the inputs differ: {before.input or NOTHING} and {after.input or NOTHING}")
    for name in ("cpu", "cores", "memory_mb", "devices", "governor"):
        one, other = before.environment.get(name), after.environment.get(name)
        if one != other:
            found.append(f"the machines differ in {name.replace('_', ' ')}: {one} and {other}")
    return found
