"""How many offline requests have a part in a step while online requests come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workers.model_process.offline_limit import ONLINE_S, SHORT_S, STEP_SHARE, OfflineLimit


def learnt(
    step_s: Callable[[int], float], *, offline: int = 32, first_s: float = 0.02
) -> list[int]:
    """The limits, step by step, of a generator whose steps take so long by their requests."""
    limit, found = OfflineLimit(), []
    limit.online_came(0.0)
    limit.first_piece(first_s)
    for _ in range(400):
        most = limit.most(0.0)
        assert most is not None
        found.append(most)
        limit.stepped(step_s(min(most, offline)), min(most, offline), 0.0)
    return found


def test_without_online_requests_there_is_no_limit() -> None:
    limit = OfflineLimit()
    limit.stepped(9.0, 32, 0.0)
    assert limit.most(0.0) is None
    limit.online_came(1.0)
    assert limit.most(0.9 + ONLINE_S) is not None
    assert limit.most(1.0 + ONLINE_S) is None


@pytest.mark.parametrize("each_s", [0.0002, 0.0005, 0.001])
def test_as_many_have_a_part_as_fit_into_a_short_step(each_s: float) -> None:
    fit = int((SHORT_S - 0.002) / each_s)
    found = learnt(lambda count: 0.002 + each_s * count)
    assert found[0] == 1
    assert set(found[200:]) <= {fit - 1, fit, fit + 1}


def test_a_model_whose_online_requests_take_long_has_longer_steps() -> None:
    found = learnt(lambda count: 0.01 * count, first_s=0.04 / STEP_SHARE + 0.001)
    assert set(found[200:]) <= {3, 4, 5}


def test_one_has_a_part_however_long_a_step_takes() -> None:
    assert set(learnt(lambda count: 9.0)) == {1}


def test_steps_of_fewer_requests_do_not_raise_the_limit() -> None:
    found = learnt(lambda count: 0.001, offline=3)
    assert found[-1] == 4


def test_one_long_step_lowers_the_limit_by_one_at_most() -> None:
    limit = OfflineLimit()
    limit.online_came(0.0)
    for _ in range(40):
        most = limit.most(0.0)
        assert most is not None
        limit.stepped(0.0, most, 0.0)
    before = limit.most(0.0)
    assert before is not None
    assert before > 10
    limit.stepped(60.0, before, 0.0)
    assert limit.most(0.0) in (before, before - 1)
