from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.batcher import Batcher, BatchTimeFit, Hold, Leave, Policy


@dataclass
class Waiting:
    enqueued_at: float
    alone: bool = False


def batcher(size: int = 4, delay_s: float = 1.0) -> Batcher[Waiting]:
    return Batcher(Policy(size, delay_s))


def learned(target: Batcher[Waiting], fixed_s: float, per_item_s: float = 0.0) -> None:
    for _ in range(20):
        for size in (1, 4):
            target.observe(size, fixed_s + per_item_s * size)


def left(decision: object) -> Leave[Waiting]:
    assert isinstance(decision, Leave)
    return decision


def test_an_empty_batcher_wants_nothing() -> None:
    assert batcher().decide(0.0) is None


def test_a_lone_item_leaves_at_once() -> None:
    waiting = batcher()
    waiting.add(Waiting(10.0))
    assert left(waiting.decide(10.0)).reason == "idle"
    assert len(waiting) == 0


def test_a_full_batch_leaves_in_order_and_the_rest_stays() -> None:
    waiting = batcher(size=3)
    items = [Waiting(float(n)) for n in range(5)]
    for item in items:
        waiting.add(item)
    decision = left(waiting.decide(5.0))
    assert decision.reason == "full"
    assert decision.items == items[:3]
    assert len(waiting) == 2
    assert waiting.room == 1


def test_a_hold_that_pays_is_made_and_ends_at_the_deadline_of_the_oldest() -> None:
    waiting = batcher(delay_s=1.0)
    learned(waiting, fixed_s=0.5)
    for n in range(3):  # one arrival each 0.1 s
        waiting.add(Waiting(10.0 + n * 0.1))
    decision = waiting.decide(10.2)
    assert isinstance(decision, Hold)
    assert 10.2 < decision.until <= 11.0
    assert left(waiting.decide(11.0)).reason == "deadline"


def test_no_hold_when_the_wait_of_all_costs_more_than_the_batch_saves() -> None:
    waiting = batcher(delay_s=1.0)
    learned(waiting, fixed_s=0.05)
    for n in range(3):
        waiting.add(Waiting(10.0 + n * 0.1))
    assert left(waiting.decide(10.2)).reason == "idle"


def test_no_hold_when_nobody_is_expected_in_time() -> None:
    waiting = batcher(delay_s=0.2)
    learned(waiting, fixed_s=10.0)
    waiting.add(Waiting(10.0))
    waiting.add(Waiting(11.0))
    assert left(waiting.decide(11.0)).reason in ("idle", "deadline")


def test_an_item_that_waited_in_the_queue_is_not_held_again() -> None:
    waiting = batcher(delay_s=0.5)
    learned(waiting, fixed_s=10.0)
    for n in range(3):
        waiting.add(Waiting(10.0 + n * 0.01))
    assert left(waiting.decide(20.0)).reason == "deadline"


def test_items_that_must_run_alone_do() -> None:
    waiting = batcher(size=8)
    company = [Waiting(1.0), Waiting(1.1)]
    lonely = [Waiting(0.5, alone=True), Waiting(0.6, alone=True)]
    for item in (*company, *lonely):
        waiting.add(item)
    assert [left(waiting.decide(2.0)).items for _ in range(3)] == [
        [lonely[0]],
        [lonely[1]],
        company,
    ]


def test_take_all_empties_it() -> None:
    waiting = batcher()
    items = [Waiting(1.0), Waiting(1.0, alone=True)]
    for item in items:
        waiting.add(item)
    assert sorted(map(id, waiting.take_all())) == sorted(map(id, items))
    assert waiting.decide(5.0) is None


def test_the_fit_finds_the_fixed_cost_of_a_batch() -> None:
    fit = BatchTimeFit()
    assert fit.fixed_s == 0.0
    for size in (1, 8, 32, 4, 16) * 10:
        fit.add(size, 0.02 + 0.003 * size)
    assert fit.fixed_s == pytest.approx(0.02, rel=0.01)


def test_the_fit_says_nothing_from_one_size() -> None:
    fit = BatchTimeFit()
    for _ in range(50):
        fit.add(8, 0.1)
    assert fit.fixed_s == 0.0


@given(
    gaps=st.lists(st.floats(0, 5), min_size=1, max_size=60),
    alone=st.lists(st.booleans(), min_size=60, max_size=60),
    size=st.integers(1, 9),
    delay_s=st.floats(0, 3),
    fixed_s=st.floats(0, 2),
)
def test_every_item_leaves_once_in_order_and_never_held_beyond_its_delay(
    gaps: list[float], alone: list[bool], size: int, delay_s: float, fixed_s: float
) -> None:
    waiting = batcher(size, delay_s)
    learned(waiting, fixed_s)
    now, came, gone = 0.0, [], []
    for gap, lonely in zip(gaps, alone, strict=False):
        now += gap
        came.append(Waiting(now, lonely))
        waiting.add(came[-1])
        while isinstance(decision := waiting.decide(now), Leave):
            assert 1 <= len(decision.items) <= size
            gone += decision.items
        if decision is not None:
            assert now < decision.until <= min(i.enqueued_at for i in came[len(gone) :]) + delay_s
    while isinstance(decision := waiting.decide(now + delay_s + 1), Leave):
        gone += decision.items
    assert decision is None
    assert len(gone) == len(came)
    together = [item for item in gone if not item.alone]
    assert together == [item for item in came if not item.alone]
