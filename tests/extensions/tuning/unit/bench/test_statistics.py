"""The statistics of a load, against known values."""

from __future__ import annotations

import math
import random

import pytest

from extensions.tuning.bench import statistics
from extensions.tuning.bench.load.scenarios import objective_of
from extensions.tuning.bench.measurement import Objective
from headrace.errors import InvalidRequest

P99 = objective_of("p99=100ms")


@pytest.mark.parametrize(
    ("text", "percentile"),
    [("p50=1s", 50), ("p99.9=1s", 99.9), ("p999=1s", 99.9), ("p9999=1s", 99.99)],
)
def test_a_percentile_is_read(text: str, percentile: float) -> None:
    assert objective_of(text).percentile == pytest.approx(percentile)


@pytest.mark.parametrize("text", ["p100=1ms", "p101=1ms", "p500=1ms", "p0=1ms", "99=1ms"])
def test_a_percentile_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no objective"):
        objective_of(text)


@pytest.mark.parametrize(
    ("objective", "needed"),
    [
        ("p99=1s", {0: 459, 1: 662, 5: 1307, 10: 2010}),
        ("p99.9=1s", {0: 4603, 1: 6636, 5: 13105, 10: 20140}),
        ("p95=1s", {0: 90, 1: 130, 5: 259, 10: 398}),
    ],
)
def test_needed_requests_are_those_of_the_binomial_rule(
    objective: str, needed: dict[int, int]
) -> None:
    chosen = objective_of(objective)
    assert {late: statistics.needed_requests(late, chosen) for late in needed} == needed
    for late, requests in needed.items():
        assert statistics.allowed_late(requests, chosen) == late
        assert statistics.allowed_late(requests - 1, chosen) == late - 1


def test_the_binomial_distribution_is_that_of_a_plain_sum() -> None:
    for count, chance in ((1, 0.5), (20, 0.3), (300, 0.01)):
        plain = 0.0
        for most in range(count):
            plain += math.comb(count, most) * chance**most * (1 - chance) ** (count - most)
            assert statistics.binomial_cdf(most, count, chance) == pytest.approx(plain)
        assert statistics.binomial_cdf(count, count, chance) == 1
    assert statistics.binomial_cdf(-1, 5, 0.5) == 0


def test_very_many_requests_have_a_limit_close_to_the_percentile() -> None:
    allowed = statistics.allowed_late(1_000_000, P99)
    # 2.33 standard deviations below 1 %.
    assert allowed == pytest.approx(10_000 - 2.33 * math.sqrt(9900), abs=5)


@pytest.mark.parametrize(
    ("requests", "late", "met", "words"),
    [
        (459, 0, True, "is met with 99 % confidence: 0 of 459"),
        (458, 0, False, "is not confirmed with 99 % confidence: 0 of 458"),
        (700, 2, False, "this needs 838 requests"),
        (1000, 50, False, "is missed: 50 of 1,000 requests were late or failed"),
        (0, 0, False, "this needs 459 requests"),
    ],
)
def test_a_verdict_says_why(requests: int, late: int, met: bool, words: str) -> None:
    found = statistics.verdict(requests, late, P99)
    assert found.met is met
    assert words in found.text
    assert "p99 within 100 ms" in found.text


def test_percentiles_are_values_that_were_seen() -> None:
    values = list(range(1, 101))
    found = statistics.spread(values)
    assert (found.p50, found.p90, found.p95, found.p99, found.p999, found.max) == (
        50, 90, 95, 99, 100, 100,
    )  # fmt: skip
    assert found.mean == 50.5
    assert statistics.spread([]).max == 0
    assert statistics.spread([7]).p50 == 7


def test_the_cdf_ends_at_one_and_ascends() -> None:
    points = statistics.cdf([random.Random(1).random() for _ in range(5000)])
    assert len(points) == statistics.CDF_POINTS
    assert points == sorted(points)
    assert points[-1][1] == 1
    assert statistics.cdf([3.0, 3.0]) == [(3.0, 0.5), (3.0, 1.0)]
    assert statistics.cdf([]) == []


def test_the_interval_of_a_rate_holds_the_rate_in_most_cases() -> None:
    draw = random.Random(5)
    held = 0
    for _ in range(30):
        counts = [sum(draw.random() < 0.1 for _ in range(400)) for _ in range(30)]
        low, high = statistics.rate_interval(counts, 0.5)
        assert low <= sum(counts) / 15 <= high
        held += low <= 80 <= high
    assert held >= 24, "an interval of 95 % over few windows is a little too narrow"
    assert statistics.rate_interval([40] * 10, 2.0) == (20, 20)
    assert statistics.rate_interval([], 1.0) == (0, 0)


def test_a_slow_start_is_warm_up_and_noise_is_not() -> None:
    draw = random.Random(3)
    noise = [draw.uniform(9, 11) for _ in range(30)]
    assert statistics.warm_up_windows([200, 90, 30, *noise]) == 3
    assert statistics.warm_up_windows(noise) == 0
    assert statistics.warm_up_windows([10.0] * 8) == 0
    assert statistics.warm_up_windows([]) == 0


def test_latency_that_climbs_is_a_drift() -> None:
    assert statistics.drifts([10 + 3 * second for second in range(20)])
    assert not statistics.drifts([10, 12, 11, 10, 13, 12, 10, 11])
    assert not statistics.drifts([0.4, 0.4, 0.4, 1.2, 1.2, 1.2]), "both are below a timer's noise"


def test_a_queue_that_fills_grows_and_one_that_varies_does_not() -> None:
    draw = random.Random(4)
    assert statistics.grows([3 * second for second in range(20)], 50)
    assert not statistics.grows([draw.randint(0, 6) for _ in range(20)], 50)
    assert not statistics.grows([400, 390, 410, 400, 395, 405], 50), "it is long, but stays"


def test_a_lower_confidence_needs_fewer_requests() -> None:
    assert (
        statistics.needed_requests(0, Objective(percentile=99, latency_ms=1, confidence=0.9)) == 230
    )


def test_many_late_requests_refute_an_objective_and_a_few_do_not() -> None:
    assert statistics.refuting_late(1000, P99) == 20
    for requests in (10, 459, 5000):
        few = statistics.refuting_late(requests, P99)
        assert few > statistics.allowed_late(requests, P99)
        assert statistics.binomial_cdf(few, requests, 0.01) > 0.99
