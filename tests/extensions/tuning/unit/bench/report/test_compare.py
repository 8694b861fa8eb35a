from __future__ import annotations

from extensions.tuning.bench.measurement import Peak
from extensions.tuning.bench.report import compare, differences_table
from extensions.tuning.bench.report.compare import percentile
from tests.extensions.tuning.harness.measurements import load, measurement


def verdicts(before: object, after: object) -> dict[str, str]:
    found, _ = compare(before, after)  # type: ignore[arg-type]
    return {f"{one.load} {one.figure}".strip(): one.text for one in found}


def test_equal_measurements_have_no_difference() -> None:
    found, limits = compare(measurement(), measurement())
    assert {one.text for one in found} == {"no difference"}
    assert [one.better for one in found] == [None] * len(found)
    assert limits == []


def test_a_difference_is_named_only_where_the_intervals_do_not_overlap() -> None:
    before = measurement(loads=[load(rate=100.0, rate_low=95.0, rate_high=105.0)])
    near = measurement(
        loads=[load(rate=108.0, rate_low=104.0, rate_high=112.0, offered_rate=100.0)]
    )
    far = measurement(loads=[load(rate=110.0, rate_low=106.0, rate_high=114.0, offered_rate=100.0)])
    assert verdicts(before, near)["server 100/s results/s"] == "no difference"
    assert verdicts(before, far)["server 100/s results/s"] == "10 % higher: better"
    assert verdicts(far, before)["server 100/s results/s"] == "9.09 % lower: worse"


def test_a_lower_latency_is_better_and_a_few_requests_tell_nothing_about_p99() -> None:
    slow, fast = (measurement(loads=[load(mean)]) for mean in (20.0, 10.0))
    assert verdicts(slow, fast)["server 100/s p99 ms"] == "50 % lower: better"
    assert verdicts(fast, slow)["server 100/s p99 ms"] == "100 % higher: worse"
    few = [measurement(loads=[load(mean, requests=100)]) for mean in (20.0, 10.0)]
    assert verdicts(*few)["server 100/s p99 ms"] == "too few requests"
    assert verdicts(*few)["server 100/s p50 ms"] == "50 % lower: better"


def test_the_interval_of_a_percentile_narrows_with_the_requests() -> None:
    few, many = (percentile(load(requests=n), 95.0) for n in (1_000, 100_000))
    assert few.low is not None
    assert many.low is not None
    assert few.high is not None
    assert many.high is not None
    assert few.low <= many.low <= many.value <= many.high <= few.high
    assert few.high - few.low > many.high - many.low
    assert percentile(load(latency_cdf=[]), 95.0).low is None


def test_what_is_not_comparable_is_said() -> None:
    refused = load(refused="the generator was late")
    before = measurement(loads=[refused, load(rate=50.0)])
    machine = {**before.environment, "cores": 4}
    after = measurement(
        loads=[load(), load(rate=70.0)], environment=machine, model="other", input="text"
    )
    found, limits = compare(before, after)
    assert [one.figure for one in found] == ["peak, requests/s"]
    text = "\n".join(limits)
    for words in (
        "the models differ: resnet50 and other", "the inputs differ", "cores: 8 and 4",
        "server 100/s is not compared", "the generator was late", "server 50/s, server 70/s",
    ):  # fmt: skip
        assert words in text


def test_repeated_loads_are_compared_in_turn() -> None:
    found, _ = compare(measurement(loads=[load(), load()]), measurement(loads=[load(), load()]))
    assert {one.load for one in found} == {"", "server 100/s", "server 100/s (2)"}


def test_a_peak_that_no_rate_exceeded_has_no_upper_end() -> None:
    before = measurement(peak=Peak(rate=100.0, low=100.0, high=None))
    after = measurement(peak=Peak(rate=300.0, low=300.0, high=320.0))
    assert verdicts(before, after)["peak, requests/s"] == "no difference"
    table = differences_table(*compare(before, after))
    assert "100 (100 or more)" in table


def test_nothing_in_common_is_said() -> None:
    table = differences_table(*compare(measurement(loads=[], peak=None), measurement(peak=None)))
    assert "no load in common" in table
