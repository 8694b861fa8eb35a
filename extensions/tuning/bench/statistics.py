"""Statistics of a load: percentiles, the binomial rule, intervals and the steady part. Pure code.

Sums over many requests are plain loops: a load has at most a few million rows, and the numbers are
needed once.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import fmean, median_low, pvariance
from typing import Final

from extensions.tuning.bench.measurement import Objective, Spread, Verdict

#: Resamples of a bootstrap.
RESAMPLES: Final = 2000
CDF_POINTS: Final = 200
#: A second half whose median latency differs by more than this factor is no steady part.
DRIFT: Final = 1.5
#: Differences below this are no drift, however large the factor is.
DRIFT_MS: Final = 2.0
#: Terms of the binomial distribution beyond so many standard deviations are 0 for our purposes.
_FAR: Final = 12.0
#: The error of a mean must become so much smaller before windows are left out.
_CLEARLY: Final = 0.75
_ROUNDING: Final = 1e-12
#: More requests than any load has.
_MANY: Final = 10**12


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the values do not exceed."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered) - 1e-9) - 1))]


def spread(values: Sequence[float]) -> Spread:
    """Return how values are spread; all zero without values."""
    ordered = sorted(values)
    mean = fmean(ordered) if ordered else 0.0
    shares = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
    p50, p90, p95, p99, p999, most = (percentile(ordered, share) for share in shares)
    return Spread(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, p999=p999, max=most)


def cdf(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return at most CDF_POINTS points (value, share of the values that do not exceed it)."""
    ordered = sorted(values)
    count = len(ordered)
    points = min(CDF_POINTS, count)
    ranks = sorted({math.ceil(count * step / points) for step in range(1, points + 1)})
    return [(ordered[rank - 1], rank / count) for rank in ranks]


def binomial_cdf(most: int, count: int, chance: float) -> float:
    """Return the probability of at most `most` successes in `count` tries of this chance."""
    mean, deviation = count * chance, math.sqrt(count * chance * (1 - chance))
    far = _FAR * deviation + 10
    if most >= min(count, mean + far):
        return 1.0
    first = max(0, math.floor(mean - far))
    logs = (math.log(chance), math.log1p(-chance), math.lgamma(count + 1))
    terms = (
        math.exp(
            logs[2] - math.lgamma(k + 1) - math.lgamma(count - k + 1)
            + k * logs[0] + (count - k) * logs[1]
        )
        for k in range(first, most + 1)
    )  # fmt: skip
    return min(1.0, math.fsum(terms))


def needed_requests(late: int, objective: Objective) -> int:
    """Return how many requests confirm an objective when `late` of them are late.

    With 99 % confidence in a p99 these are 459 with none, 662 with one and 1,307 with five.
    """
    chance, doubt = 1 - objective.percentile / 100, 1 - objective.confidence
    counts = range(late + 1, _MANY)
    return counts[bisect_left(counts, -doubt, key=lambda n: -binomial_cdf(late, n, chance))]


def allowed_late(requests: int, objective: Objective) -> int:
    """Return the most late requests with which so many confirm an objective; -1 if none do."""
    chance, doubt = 1 - objective.percentile / 100, 1 - objective.confidence
    return bisect_right(range(requests), doubt, key=lambda n: binomial_cdf(n, requests, chance)) - 1


def refuting_late(requests: int, objective: Objective) -> int:
    """Return so many late requests that more of them refute an objective, and not only chance.

    It is the mean of a server that just meets the objective, and 2.33 standard deviations (99 %).
    """
    chance = 1 - objective.percentile / 100
    mean = requests * chance
    return math.ceil(mean + 2.33 * math.sqrt(mean * (1 - chance))) + 2


def verdict(requests: int, late: int, objective: Objective) -> Verdict:
    """Return whether so many requests with so many late ones confirm an objective."""
    allowed, needed = allowed_late(requests, objective), needed_requests(late, objective)
    met = late <= allowed
    refuted = not met and late > requests * (1 - objective.percentile / 100)
    promise = f"p{objective.percentile:g} within {objective.latency_ms:g} ms"
    sure = f"{objective.confidence * 100:g} % confidence"
    counted = f"{late:,} of {requests:,} requests were late or failed"
    if met:
        text = f"{promise} is met with {sure}: {counted}; {allowed:,} may be"
    elif refuted:
        text = f"{promise} is missed: {counted}"
    else:
        text = f"{promise} is not confirmed with {sure}: {counted}; this needs {needed:,} requests"
    return Verdict(
        met=met, requests=requests, late=late, allowed=allowed, needed=needed, text=text,
        refuted=refuted,
    )  # fmt: skip


def rate_interval(counts: Sequence[int], length_s: float) -> tuple[float, float]:
    """Return the 95 % interval of a rate by a bootstrap over the answers in equal windows."""
    if not counts:
        return 0.0, 0.0
    draw = random.Random(len(counts))  # noqa: S311 - repeatable on purpose
    total_s = length_s * len(counts)
    rates = sorted(sum(draw.choices(counts, k=len(counts))) / total_s for _ in range(RESAMPLES))
    return percentile(rates, 0.025), percentile(rates, 0.975)


def warm_up_windows(latencies: Sequence[float]) -> int:
    """Return how many windows at the start are warm-up: White's marginal standard error rule.

    It leaves out as many windows as make the error of the mean of the others smallest, and at most
    half of them. Latencies count by their logarithm, so that one slow window does not decide.

    Args:
        latencies: the median latency of each window, in milliseconds.
    """
    logs = [math.log(max(value, 1e-3)) for value in latencies]
    best, least, margin = 0, math.inf, 1.0
    for cut in range(len(logs) // 2 + 1):
        rest = logs[cut:]
        if len(rest) < 2:
            break
        error = pvariance(rest) / len(rest)
        if error < least * margin - _ROUNDING:
            best, least = cut, error
        # Chance alone makes the error a little smaller somewhere.
        margin = _CLEARLY if best == 0 else 1.0
    return best


def drifts(latencies: Sequence[float]) -> bool:
    """Return whether the second half of the windows has another median latency than the first."""
    middle = len(latencies) // 2
    if middle < 2:
        return False
    low, high = sorted((median_low(latencies[:middle]), median_low(latencies[middle:])))
    return high - low > DRIFT_MS and high > DRIFT * low


def grows(waiting: Sequence[int], rate: float) -> bool:
    """Return whether requests without an answer become more, from window to window.

    Args:
        waiting: how many requests have no answer at the end of each window.
        rate: requests a second, whose chance differences do not count.
    """
    third = len(waiting) // 3
    if third < 1:
        return False
    first, last = fmean(waiting[:third]), fmean(waiting[-third:])
    return last > 1.5 * first + max(4.0, 0.5 * math.sqrt(rate), 0.05 * rate)
