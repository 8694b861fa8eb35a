"""How many offline requests have a part in a step while online requests come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workers.model_process.generation.offline_limit import (
    MORE_SHARE,
    ONLINE_S,
    SHORT_S,
    STEP_SHARE,
    OfflineLimit,
)


def learnt(
    step_s: Callable[[int], float], *, offline: int = 32, first_s: float = 0.02, steps: int = 400
) -> list[int]:
    """The limits, step by step, of a generator whose steps take so long by their requests."""
    limit, found = OfflineLimit(), []
    limit.online_came(0.0)
    limit.first_piece(first_s)
    for _ in range(steps):
        most = limit.at(0.0)
        assert most is not None
        found.append(most)
        limit.stepped(step_s(min(most, offline)), min(most, offline), 0.0)
    return found


def test_without_online_requests_there_is_no_limit() -> None:
    limit = OfflineLimit()
    limit.stepped(9.0, 32, 0.0)
    assert limit.at(0.0) is None
    limit.online_came(1.0)
    assert limit.at(0.9 + ONLINE_S) is not None
    assert limit.at(1.0 + ONLINE_S) is None


@pytest.mark.parametrize("each_s", [0.0002, 0.0005, 0.001])
def test_as_many_have_a_part_as_fit_into_a_short_step(each_s: float) -> None:
    fit = int((SHORT_S - 0.002) / each_s)
    found = learnt(lambda count: 0.002 + each_s * count)
    assert found[0] == 1
    assert set(found[200:]) <= {fit - 1, fit, fit + 1}


def test_a_model_whose_online_requests_take_long_has_longer_steps() -> None:
    found = learnt(lambda count: 0.01 * count, first_s=0.04 / STEP_SHARE + 0.001)
    assert set(found[200:]) <= {3, 4, 5}


def test_one_runs_however_long_a_step_takes() -> None:
    found = learnt(lambda count: 9.0 * count)
    assert set(found) == {1, 2}
    assert found.count(2) < len(found) / 8, "a second one is tried now and then"


@pytest.mark.parametrize("fixed_s", [0.005, 0.02, 0.1])
def test_steps_that_take_long_by_themselves_have_as_many_as_add_little(fixed_s: float) -> None:
    def step_s(count: int) -> float:
        return fixed_s + fixed_s / 200 * count

    found = learnt(step_s, first_s=step_s(1), offline=60, steps=2000)
    if fixed_s > SHORT_S:
        assert max(found[:150]) >= 32
    full = [n for n in found[-1000:] if n > 1]
    assert all(45 <= n <= 55 for n in full)
    assert len(full) > 980, "steps with one of them are rare"


def test_the_time_of_a_step_with_one_request_is_learnt_again() -> None:
    limit = OfflineLimit()
    limit.online_came(0.0)
    limit.first_piece(0.02)

    def run(fixed_s: float) -> float:
        for _ in range(1500):
            most = limit.at(0.0)
            assert most is not None
            limit.stepped(fixed_s + 0.0001 * most, most, 0.0)
        return limit.step_s

    for fixed_s in (0.04, 0.02, 0.05, 0.03):
        assert run(fixed_s) == pytest.approx((1 + MORE_SHARE) * (fixed_s + 0.0001), rel=0.02)


def test_steps_of_fewer_requests_do_not_raise_the_limit() -> None:
    found = learnt(lambda count: 0.001, offline=3)
    assert found[-1] == 4


def test_one_long_step_lowers_the_limit_by_one_at_most() -> None:
    limit = OfflineLimit()
    limit.online_came(0.0)
    for _ in range(40):
        most = limit.at(0.0)
        assert most is not None
        limit.stepped(0.0, most, 0.0)
    before = limit.at(0.0)
    assert before is not None
    assert before > 10
    limit.stepped(60.0, before, 0.0)
    assert limit.at(0.0) in (before, before - 1)
