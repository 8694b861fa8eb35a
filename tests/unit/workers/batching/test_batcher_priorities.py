"""Priorities in the batcher: who leaves first, who goes along, and who has waited too long."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.redis.keys import STEPS
from workers.batching.batcher import OVERDUE_EVERY, Batcher, BatchPolicy, Hold, Leave

NEVER = float("inf")
NOW = 10.0


@dataclass(eq=False)
class Waiting:
    step: int = 0
    enqueued_at: float = NOW
    overdue_at: float = NEVER
    isolated: bool = False
    cost: int = 0
    key: str | None = None
    ready_at: float = 0.0


def batcher(
    *items: Waiting, size: int = 8, delay_s: float = 1.0, **more: object
) -> Batcher[Waiting]:
    made = Batcher[Waiting](BatchPolicy(size, delay_s, **more))  # type: ignore[arg-type]
    for item in items:
        made.add(item)
    return made


def learned(target: Batcher[Waiting], fixed_s: float, item_s: float = 0.0) -> Batcher[Waiting]:
    for _ in range(20):
        for size in (1, 8):
            target.latency_model.add(size, fixed_s + item_s * size)
    return target


def left(target: Batcher[Waiting], now: float = NOW) -> list[Waiting]:
    isolated = target.next_isolated(now)
    if isolated is not None:
        assert target.take_isolated(isolated)
        return [isolated]
    decision = target.decide(now)
    assert isinstance(decision, Leave)
    return decision.items


def some(step: int, count: int, overdue_at: float = NEVER) -> list[Waiting]:
    return [Waiting(step, overdue_at=overdue_at) for _ in range(count)]


def test_better_priorities_leave_first_and_in_order_within_a_step() -> None:
    nines, threes, noughts = some(9, 2), some(3, 2), some(0, 2)
    waiting = batcher(*nines, *threes, *noughts, size=3)
    assert [left(waiting) for _ in range(2)] == [[*noughts, threes[0]], [threes[1]]]
    assert left(waiting) == nines


def test_what_is_prepared_takes_no_room_from_better_ones() -> None:
    waiting = batcher(*some(6, 3), *some(9, 5))
    assert waiting.room == [8, 8, 5, 0]
    assert batcher(*some(9, 9), size=4).room == [4, 4, 4, 0]
    assert batcher(*some(0, 1), keyed=True).room == [15, 15, 15, 15]
    dear = Waiting(3, cost=9)
    assert batcher(dear, max_batch_cost=9).room == [8, 0, 0, 0]


def test_online_ones_leave_alone_while_it_is_not_known_that_company_costs_them_nothing() -> None:
    online, offline = some(0, 3), some(9, 8)
    waiting = batcher(*offline, *online)
    assert left(waiting) == online
    assert left(waiting) == offline


@pytest.mark.parametrize(
    ("fixed_s", "item_s", "along"),
    [
        (0.08, 0.0, 5),  # a batch takes as long as one item
        (0.18, 0.01, 2),  # 0.23 s instead of 0.21 s
        (0.02, 0.01, 0),
        (0.0, 0.01, 0),
    ],
)
def test_offline_ones_go_along_where_that_makes_the_batch_hardly_longer(
    fixed_s: float, item_s: float, along: int
) -> None:
    online, offline = some(0, 3), some(9, 8)
    waiting = learned(batcher(*offline, *online), fixed_s, item_s)
    assert left(waiting, NOW + 2) == [*online, *offline[:along]]


def test_places_that_would_be_padded_are_filled_and_more_where_it_pays() -> None:
    online, offline = some(0, 3), some(9, 8)
    sizes = (1, 2, 4, 8)
    assert left(batcher(*online, *offline, sizes=sizes)) == [*online, offline[0]]
    dear = learned(batcher(*online, *offline, sizes=sizes), 0.02, 0.01)
    assert left(dear, NOW + 2) == [*online, offline[0]]
    cheap = learned(batcher(*online, *offline, sizes=sizes), 0.4, 0.01)
    assert left(cheap, NOW + 2) == [*online, *offline[:5]]


def test_filling_keeps_the_cost_and_the_key() -> None:
    online = [Waiting(0, cost=4, key="a") for _ in range(2)]
    offline = [Waiting(9, cost=3, key=key) for key in "ababa"]
    waiting = learned(batcher(*offline, *online, max_batch_cost=15, keyed=True), 1.0)
    assert left(waiting, NOW + 2) == [*online, offline[0], offline[2]]


def test_nothing_online_is_held_for_offline_company_and_nothing_offline_goes_meanwhile() -> None:
    offline = [Waiting(9, NOW - n) for n in range(3, 0, -1)]
    waiting = learned(batcher(*offline), 0.5)
    online = Waiting(0)
    waiting.add(online)
    # Nothing is known of online arrivals, however close the offline ones came.
    assert left(waiting)[0] is online
    waiting = learned(batcher(*(Waiting(0, NOW + n / 10) for n in range(3)), keyed=True), 0.5)
    waiting.add(Waiting(9, NOW - 9, key="other"))
    assert isinstance(waiting.decide(NOW + 0.2), Hold)


def test_an_old_offline_item_does_not_end_the_hold_of_online_ones() -> None:
    waiting = learned(batcher(Waiting(9, NOW - 100)), 0.5)
    for n in range(3):
        waiting.add(Waiting(0, NOW + n / 10))
    assert isinstance(waiting.decide(NOW + 0.2), Hold)


def test_an_offline_item_that_must_run_alone_waits_for_online_ones() -> None:
    alone, online = Waiting(9, isolated=True), Waiting(0)
    waiting = batcher(alone, online)
    assert [left(waiting), left(waiting)] == [[online], [alone]]
    lost, fresh = Waiting(0, isolated=True), Waiting(0)
    waiting = batcher(fresh, lost)
    assert [left(waiting), left(waiting)] == [[lost], [fresh]]


def test_what_has_waited_too_long_goes_first_once_in_so_many() -> None:
    late = some(9, 3, overdue_at=NOW + 5)
    online = some(0, 3 * OVERDUE_EVERY)
    waiting = batcher(*late, *online, size=1)
    assert left(waiting, NOW + 4)[0] is online[0]
    ran = [left(waiting, NOW + 5)[0] for _ in range(2 * OVERDUE_EVERY + 3)]
    assert [ran.index(item) for item in late] == [0, OVERDUE_EVERY + 1, 2 * OVERDUE_EVERY + 2]


def test_it_takes_one_place_of_a_batch() -> None:
    late, online = some(9, 4, overdue_at=NOW), some(0, 9)
    waiting = batcher(*late, *online, size=4)
    assert left(waiting) == [late[0], *online[:3]]
    assert left(waiting) == online[3:7]


def test_one_of_another_key_or_that_must_run_alone_has_a_batch_of_its_own() -> None:
    late, online = Waiting(9, overdue_at=NOW, key="b"), Waiting(0, key="a")
    assert left(batcher(late, online, keyed=True)) == [late]
    late = Waiting(9, overdue_at=NOW, isolated=True)
    assert left(batcher(online, late, keyed=True)) == [late]


def test_of_several_steps_the_one_that_is_late_longest_goes_first() -> None:
    six, nine = Waiting(6, overdue_at=NOW - 1), Waiting(9, overdue_at=NOW - 2)
    waiting = batcher(*some(0, 1), six, nine, size=1)
    assert left(waiting) == [nine]


def test_neighbours_keep_their_order_though_the_second_is_late_first() -> None:
    first, second = Waiting(9, overdue_at=NOW - 1), Waiting(9, overdue_at=NOW - 2)
    assert left(batcher(*some(0, 1), first, second, size=1)) == [first]


def test_whether_something_is_late_is_known_without_looking_again() -> None:
    late = Waiting(9, overdue_at=NOW)
    waiting = batcher(late, Waiting(9))
    assert not waiting.overdue(NOW - 1)
    assert waiting.overdue(NOW)
    assert waiting.remove(late)
    assert not waiting.overdue(NOW)
    assert waiting.room == [8, 8, 8, 7]


@given(
    steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=60),
    late=st.lists(st.booleans(), min_size=60, max_size=60),
    keys=st.lists(st.sampled_from(["a", "b"]), min_size=60, max_size=60),
    size=st.integers(1, 9),
    fixed_s=st.sampled_from([0.0, 0.1, 5.0]),
)
def test_every_item_leaves_once_and_nothing_goes_before_better_ones_but_what_may(
    steps: list[int], late: list[bool], keys: list[str], size: int, fixed_s: float
) -> None:
    there = [
        Waiting(step, overdue_at=NOW if step and is_late else NEVER, key=key)
        for step, is_late, key in zip(steps, late, keys, strict=False)
    ]
    waiting = learned(batcher(*there, size=size, delay_s=0.0, keyed=True), fixed_s, 0.01)
    since = OVERDUE_EVERY
    while there:
        batch = left(waiting)
        assert 1 <= len(batch) <= size
        assert len({item.key for item in batch}) == 1
        best = min(item.step for item in there)
        if batch[0].step > best:
            assert batch[0].overdue_at <= NOW
            assert since >= OVERDUE_EVERY
            since = 0
        else:
            since += len(batch)
        online = [item for item in batch[1:] if item.step < 9]
        assert [item.step for item in online] == sorted(item.step for item in online)
        kept = [item for item in there if item not in batch]
        worst = max((item.step for item in batch[1:]), default=0)
        same = [item for item in kept if item.key == batch[0].key]
        assert all(item.step >= worst for item in same), "a better one of that key was left"
        there = kept
    assert len(waiting) == 0
    assert waiting.decide(NOW) is None
    assert waiting.room == [2 * size] * 4
