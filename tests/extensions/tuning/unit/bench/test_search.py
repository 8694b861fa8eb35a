"""The search for the peak, on loads that are made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from extensions.tuning.bench.load.scenarios import Scenario
from extensions.tuning.bench.measure import LoadOptions, PeakSearch
from extensions.tuning.bench.measurement import Load, Objective
from extensions.tuning.bench.statistics import verdict
from tests.extensions.tuning.harness.measurements import load

OBJECTIVE = Objective(percentile=95, latency_ms=300)


class Session:
    """Sends no requests: `load_of` makes each load from its rate and length in seconds."""

    def __init__(self, load_of: Callable[[float, float], Load]) -> None:
        self.loads: list[Load] = []
        self.lengths: list[float] = []
        self.probe = self
        self._load_of = load_of

    def lone_latency_s(self) -> float:
        return 0.01

    def run(self, scenario: Scenario, length_s: float) -> Load:
        self.lengths.append(length_s)
        self.loads.append(self._load_of(scenario.rate, length_s))
        return self.loads[-1]


def search(load_of: Callable[[float, float], Load]) -> tuple[PeakSearch, Session]:
    session = Session(load_of)
    return PeakSearch(session, OBJECTIVE, LoadOptions(duration_s=5.0)), session  # type: ignore[arg-type]


def sent(rate: float, length_s: float, *, late: int = 0, **fields: Any) -> Load:
    requests = int(rate * length_s)
    return load(
        rate=rate,
        requests=requests,
        verdict=verdict(requests, late, OBJECTIVE),
        **fields,
    )


def test_a_load_that_meets_the_objective_and_is_not_steady_is_sent_again_for_longer() -> None:
    found, session = search(lambda rate, s: sent(rate, s, steady=s > 15))
    assert found.met(50)
    assert found.low == 50
    first = session.lengths[0]
    assert session.lengths == [first, 2 * first, 4 * first]


def test_a_rate_with_no_steady_load_is_missed() -> None:
    found, session = search(lambda rate, s: sent(rate, s, steady=False))
    assert not found.met(50)
    assert (found.low, found.high, len(session.loads)) == (0, 50, 3)


def test_a_load_that_was_cut_is_not_sent_again() -> None:
    found, session = search(
        lambda rate, s: sent(rate, s, late=int(rate * s), steady=False, cut=True)
    )
    assert not found.met(50)
    assert len(session.loads) == 1


def test_a_peak_far_below_the_first_rate_is_found_with_small_steps() -> None:
    peak = 20.0
    found, session = search(
        lambda rate, s: sent(rate, s, late=0 if rate <= peak else int(rate * s))
    )
    found.bracket(83.0, 1.1)
    found.bisect(1.05)
    assert peak / 1.05 <= found.low <= peak
    assert len(session.loads) < 15


def test_between_a_rate_that_met_and_one_that_missed_no_rate_is_sent_again() -> None:
    found, session = search(lambda rate, s: sent(rate, s, late=0 if rate <= 50 else int(rate * s)))
    assert found.met(48.0)
    found.bracket(96.0, 2.0)
    assert (found.low, found.high) == (48, 96)
    assert [load.rate for load in session.loads] == [48, 96]


def test_a_search_sends_no_load_that_is_longer_than_it_may_be() -> None:
    session = Session(lambda rate, s: sent(rate, s, late=int(rate * s), cut=True))
    options = LoadOptions(duration_s=5.0, longest_s=60.0)
    found = PeakSearch(session, OBJECTIVE, options)  # type: ignore[arg-type]
    found.bracket(10.0, 2.0)
    assert max(session.lengths) <= 60.0
    # At a rate of 2.5 the requests that confirm it would take 67 s.
    assert (found.low, found.high) == (0, 5.0)
