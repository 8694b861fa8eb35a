from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.batching.batcher import KEYS_MAX, Batcher, BatchPolicy, Hold, Leave
from workers.batching.estimates import LatencyModel


@dataclass(eq=False)
class Waiting:
    enqueued_at: float
    isolated: bool = False
    cost: int = 0
    key: str | None = None
    came_at: float = 0.0
    step: int = 0
    overdue_at: float = float("inf")
    ready_at: float = 0.0


def batcher(
    size: int = 4, delay_s: float = 1.0, cost: int | None = None, keyed: bool = False
) -> Batcher[Waiting]:
    return Batcher(BatchPolicy(size, delay_s, cost, keyed))


def filled(target: Batcher[Waiting], items: list[Waiting]) -> Batcher[Waiting]:
    for item in items:
        target.add(item)
    return target


def learned(target: Batcher[Waiting], fixed_s: float, per_item_s: float = 0.0) -> None:
    for _ in range(20):
        for size in (1, 4):
            target.latency_model.add(size, fixed_s + per_item_s * size)


def left(decision: object) -> Leave[Waiting]:
    assert isinstance(decision, Leave)
    return decision


def decided(target: Batcher[Waiting], now: float) -> Leave[Waiting] | Hold | None:
    """What leaves next, also if it must run alone."""
    item = target.next_isolated(now)
    if item is None:
        return target.decide(now)
    assert target.take_isolated(item)
    assert not target.take_isolated(item)
    return Leave([item], "alone")


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
    assert waiting.room[0] == 1


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
    others = [Waiting(1.0), Waiting(1.1)]
    lonely = [Waiting(0.5, isolated=True), Waiting(0.6, isolated=True)]
    for item in (*others, *lonely):
        waiting.add(item)
    assert [left(decided(waiting, 2.0)).items for _ in range(3)] == [
        [lonely[0]],
        [lonely[1]],
        others,
    ]


def test_take_all_empties_it() -> None:
    waiting = batcher()
    items = [Waiting(1.0), Waiting(1.0, isolated=True)]
    for item in items:
        waiting.add(item)
    assert sorted(map(id, waiting.take_all())) == sorted(map(id, items))
    assert waiting.decide(5.0) is None


def test_the_fit_finds_the_fixed_cost_of_a_batch() -> None:
    fit = LatencyModel()
    assert fit.fixed_s == 0.0
    for size in (1, 8, 32, 4, 16) * 10:
        fit.add(size, 0.02 + 0.003 * size)
    assert fit.fixed_s == pytest.approx(0.02, rel=0.01)


def test_the_fit_says_nothing_from_one_size() -> None:
    fit = LatencyModel()
    for _ in range(50):
        fit.add(8, 0.1)
    assert fit.fixed_s == 0.0


def test_a_batch_leaves_when_one_more_would_cost_too_much() -> None:
    items = [Waiting(1.0, cost=cost) for cost in (4, 3, 4, 10, 2)]
    waiting = filled(batcher(size=8, cost=10), items)
    leaves = [left(waiting.decide(1.0)) for _ in range(4)]
    assert [leave.items for leave in leaves] == [items[:2], items[2:3], items[3:4], items[4:]]
    assert [leave.reason for leave in leaves] == ["cost", "cost", "cost", "idle"]


def test_a_lone_item_above_the_cost_runs_alone() -> None:
    items = [Waiting(1.0, cost=cost) for cost in (99, 1)]
    waiting = filled(batcher(size=8, cost=10), items)
    assert left(waiting.decide(1.0)) == Leave(items[:1], "cost")
    assert left(waiting.decide(1.0)) == Leave(items[1:], "idle")


def test_no_more_is_taken_than_the_cost_of_one_batch() -> None:
    waiting = batcher(size=8, cost=10)
    waiting.add(Waiting(1.0, cost=9))
    assert waiting.room[0] == 7
    waiting.add(Waiting(1.0, cost=1))
    assert waiting.room[0] == 0
    left(waiting.decide(1.0))
    assert waiting.room[0] == 8


def test_keys_never_mix_and_take_turns_by_their_first_items() -> None:
    items = [Waiting(1.0, key=key) for key in "abacba"]
    waiting = filled(batcher(size=8, keyed=True), items)
    batches = [left(waiting.decide(1.0)).items for _ in range(3)]
    assert batches == [
        [items[0], items[2], items[5]],
        [items[1], items[4]],
        [items[3]],
    ]
    assert waiting.decide(1.0) is None


def test_of_more_keys_than_are_remembered_every_item_leaves() -> None:
    items = [Waiting(1.0, key=str(n % (KEYS_MAX + 9))) for n in range(3 * KEYS_MAX)]
    waiting = filled(batcher(size=8, keyed=True), items)
    gone = []
    while isinstance(decision := waiting.decide(1.0), Leave):
        assert len({item.key for item in decision.items}) == 1
        gone += decision.items
    assert sorted(map(id, gone)) == sorted(map(id, items))
    assert (decision, len(waiting)) == (None, 0)


def test_a_held_key_keeps_no_other_back() -> None:
    waiting = batcher(delay_s=1.0, keyed=True)
    learned(waiting, fixed_s=0.5)
    for n in range(3):
        waiting.add(Waiting(10.0 + n * 0.1, key="frequent"))
    assert isinstance(waiting.decide(10.2), Hold)
    rare = Waiting(10.2, key="rare")
    waiting.add(rare)
    assert left(waiting.decide(10.2)) == Leave([rare], "idle")
    assert isinstance(waiting.decide(10.2), Hold)


def test_nothing_is_held_when_no_company_can_be_taken_in() -> None:
    waiting = batcher(size=4, delay_s=1.0, keyed=True)
    learned(waiting, fixed_s=9.0)
    for n in range(7):
        waiting.add(Waiting(10.0 + n * 0.01, key="abc"[n % 3]))
    assert isinstance(waiting.decide(10.1), Hold)
    waiting.add(Waiting(10.08, key="b"))
    assert waiting.room[0] == 0
    assert left(waiting.decide(10.1)).reason == "idle"


def test_a_hold_ends_when_the_worker_drains() -> None:
    waiting = batcher(delay_s=1.0)
    learned(waiting, fixed_s=0.5)
    items = [Waiting(10.0 + n * 0.1) for n in range(3)]
    filled(waiting, items)
    assert isinstance(waiting.decide(10.2), Hold)
    assert left(waiting.decide(10.2, draining=True)) == Leave(items, "drain")


def test_what_is_taken_out_comes_in_the_order_in_which_it_came() -> None:
    items = [Waiting(1.0, key=key, isolated=key == "b") for key in "abcabc"]
    assert filled(batcher(keyed=True), items).take_all() == items


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
        while isinstance(decision := decided(waiting, now), Leave):
            assert 1 <= len(decision.items) <= size
            gone += decision.items
        if decision is not None:
            assert now < decision.until <= min(i.enqueued_at for i in came[len(gone) :]) + delay_s
    while isinstance(decision := decided(waiting, now + delay_s + 1), Leave):
        gone += decision.items
    assert decision is None
    assert len(gone) == len(came)
    together = [item for item in gone if not item.isolated]
    assert together == [item for item in came if not item.isolated]


@st.composite
def arrivals(draw: st.DrawFn) -> list[Waiting]:
    now, items = 0.0, []
    for _ in range(draw(st.integers(1, 60))):
        now += draw(st.sampled_from([0.0, 0.0, 0.01, 0.3, 5.0]))
        cost, key = draw(st.integers(0, 12)), draw(st.sampled_from([None, "a", "b", "c"]))
        waited = draw(st.sampled_from([0.0, 0.0, 0.5, 9.0]))
        alone = draw(st.integers(0, 9)) == 9
        items.append(Waiting(now - waited, alone, cost, key, came_at=now))
    return items


@given(
    items=arrivals(),
    size=st.integers(1, 6),
    limit=st.one_of(st.none(), st.integers(1, 20)),
    delay_s=st.sampled_from([0.0, 0.1, 1.0]),
    fixed_s=st.sampled_from([0.0, 0.2, 5.0]),
    busy=st.lists(st.integers(0, 4), min_size=60, max_size=60),
)
def test_the_rules_of_size_cost_keys_delay_and_work(
    items: list[Waiting],
    size: int,
    limit: int | None,
    delay_s: float,
    fixed_s: float,
    busy: list[int],
) -> None:
    """A device that is busy for some arrivals: what leaves in between keeps every rule."""
    waiting = batcher(size, delay_s, limit, keyed=True)
    learned(waiting, fixed_s)
    there: list[Waiting] = []
    for item, rest in zip(items, busy, strict=False):
        now = item.came_at
        waiting.add(item)
        there.append(item)
        if rest:
            continue
        while isinstance(decision := decided(waiting, now), Leave):
            check_batch(decision, there, size, limit)
            # No starvation: who came first is passed over only while it is held by choice.
            first = next((other for other in there if not other.isolated), None)
            if first is not None and first not in decision.items and decision.reason != "alone":
                assert now < first.enqueued_at + delay_s
            there = [other for other in there if other not in decision.items]
        if decision is None:
            assert there == []
        else:
            # Held, though the device is free: never beyond the delay, and only for who can come.
            assert now < decision.until <= min(i.enqueued_at for i in there) + delay_s
            assert waiting.room[0] > 0
    assert len(waiting) == len(there)
    end = max(item.came_at for item in items) + 100.0
    order = []
    while isinstance(decision := decided(waiting, end), Leave):
        check_batch(decision, there, size, limit)
        order.append(there.index(decision.items[0]) == 0 or decision.reason == "alone")
        there = [other for other in there if other not in decision.items]
    assert decision is None
    assert there == []
    assert all(order), "with nobody held, each batch holds the first of all that wait"


def check_batch(leave: Leave[Waiting], there: list[Waiting], size: int, limit: int | None) -> None:
    """A batch that left keeps the bounds, holds one key, and skips nobody of that key."""
    batch = leave.items
    assert 1 <= len(batch) <= size
    if limit is not None and len(batch) > 1:
        assert sum(item.cost for item in batch) <= limit
    if leave.reason == "alone":
        assert batch[0].isolated
        assert len(batch) == 1
        return
    assert len({item.key for item in batch}) == 1
    alike = [item for item in there if not item.isolated and item.key == batch[0].key]
    assert [id(item) for item in batch] == [id(item) for item in alike[: len(batch)]]
    if len(alike) > len(batch):
        assert leave.reason in ("full", "cost")
    if leave.reason == "full":
        assert len(batch) == size
    if leave.reason == "cost":
        assert limit is not None
        more = alike[len(batch)].cost if len(alike) > len(batch) else 0
        assert sum(item.cost for item in batch) + more >= limit


def test_who_is_taken_out_was_never_there() -> None:
    waiting = batcher(cost=10, keyed=True)
    items = [
        Waiting(0.0, cost=4, key="a"),
        Waiting(0.0, cost=4, key="b"),
        Waiting(0.0, cost=4, isolated=True),
    ]
    filled(waiting, items)
    assert not waiting.remove(Waiting(0.0, cost=4, key="a"))
    assert waiting.remove(items[0])
    assert waiting.remove(items[2])
    assert not waiting.remove(items[0])
    assert (len(waiting), waiting.isolated) == (1, False)
    assert left(waiting.decide(0.0)).items == [items[1]]
    assert waiting.decide(0.0) is None
    assert waiting.room[0] == 8


def test_what_comes_back_is_the_next_in_its_order() -> None:
    waiting = batcher(size=2, cost=10, keyed=True)
    items = [Waiting(0.0, cost=2, key=key) for key in "aab"]
    filled(waiting, items)
    back = left(decided(waiting, 0.0)).items
    waiting.add(Waiting(1.0, cost=2, key="a"))
    waiting.put_back(back)
    alone = Waiting(0.0, cost=2, isolated=True)
    waiting.put_back([alone])
    assert (len(waiting), waiting.isolated) == (5, True)
    assert left(decided(waiting, 1.0)).items == [alone]
    assert left(decided(waiting, 1.0)).items == back == items[:2]
    assert waiting.take_all()[0] is items[2]
    assert waiting.room[0] == 4
