"""Shares of a device's time, with invented seconds: nothing here knows a clock."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.scheduling.dispatcher import FairQueue


def flood(turns: FairQueue, wanting: set[str], took: dict[str, float], count: int) -> list[str]:
    """So many turns, one after the other, of names that always want the device."""
    order = []
    for _ in range(count):
        name = turns.order(wanting)[0]
        turns.begin(name)
        turns.end(name, took[name])
        order.append(name)
    return order


def device_time(order: list[str], took: dict[str, float]) -> dict[str, float]:
    return {name: count * took[name] for name, count in Counter(order).items()}


def test_a_lone_job_waits_for_no_more_than_the_batch_that_runs() -> None:
    turns = FairQueue({"flooded": 1, "lone": 1}, slots=1)
    flood(turns, {"flooded"}, {"flooded": 0.03}, 100)
    turns.begin("flooded")
    assert not turns.free
    turns.end("flooded", 0.03)  # the lone job came meanwhile
    assert turns.order(["flooded", "lone"])[0] == "lone"


def test_each_lone_job_of_a_small_model_is_next() -> None:
    turns = FairQueue({"flooded": 1, "lone": 1}, slots=1)
    for _ in range(20):
        flood(turns, {"flooded"}, {"flooded": 0.03}, 1)
        assert flood(turns, {"flooded", "lone"}, {"flooded": 0.03, "lone": 0.01}, 1) == ["lone"]


def test_who_was_away_has_saved_nothing_up() -> None:
    turns = FairQueue({"a": 1, "b": 1}, slots=1)
    flood(turns, {"a"}, {"a": 1.0}, 1000)
    took = {"a": 1.0, "b": 1.0}
    assert device_time(flood(turns, {"a", "b"}, took, 10), took) == {"a": 5, "b": 5}


def test_who_has_used_more_than_its_share_waits_for_the_others() -> None:
    turns = FairQueue({"long": 1, "short": 1}, slots=1)
    took = {"long": 1.0, "short": 0.1}
    order = flood(turns, {"long", "short"}, took, 110)
    assert device_time(order, took)["long"] == pytest.approx(10, abs=1)
    gaps = "".join(name[0] for name in order).strip("s").split("l")
    assert max(map(len, gaps)) <= 11


@given(
    weights=st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 10), min_size=2),
    seconds=st.lists(st.floats(0.001, 1.0), min_size=6, max_size=6),
    slots=st.integers(1, 3),
)
def test_under_flood_device_time_is_as_the_weights_are(
    weights: dict[str, float], seconds: list[float], slots: int
) -> None:
    took = dict(zip(weights, seconds, strict=False))
    turns = FairQueue(weights, slots)
    order = flood(turns, set(weights), took, 3000)
    shares = {name: spent / weights[name] for name, spent in device_time(order, took).items()}
    assert shares.keys() == weights.keys()
    # No further apart than the batches that are the last of each: no drift, however long it goes.
    step = max(took[name] / weights[name] for name in weights)
    assert max(shares.values()) - min(shares.values()) <= step * 1.001


@given(
    script=st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 1)), max_size=60),
    slots=st.integers(1, 3),
)
def test_whoever_wants_it_gets_a_free_slot(script: list[tuple[str, float]], slots: int) -> None:
    turns = FairQueue(dict.fromkeys("abcd", 1.0), slots)
    running: list[str] = []
    for name, seconds in script:
        if not turns.free:
            assert len(running) == slots
            turns.end(running.pop(0), seconds)
        assert turns.order([name]) == [name]
        turns.begin(name)
        running.append(name)
        assert turns.free == (len(running) < slots)


def test_of_equals_the_one_that_waited_longest_is_first() -> None:
    turns = FairQueue(dict.fromkeys("abc", 1.0), slots=3)
    assert flood(turns, {"a", "b", "c"}, dict.fromkeys("abc", 0.0), 6) in (
        [*order, *order] for order in (["a", "b", "c"], ["a", "c", "b"], ["b", "a", "c"],
                                       ["b", "c", "a"], ["c", "a", "b"], ["c", "b", "a"])
    )  # fmt: skip


def test_who_is_behind_is_next_when_the_running_one_is_charged() -> None:
    turns = FairQueue({"flooded": 1.0, "lone": 1.0, "heavy": 10.0}, 1)
    turns.begin("flooded")
    assert turns.behind("flooded", "lone", 0.5)
    assert not turns.behind("flooded", "lone", 0.0), "it has used nothing yet"
    turns.end("flooded", 1.0)
    turns.begin("lone")
    turns.end("lone", 5.0)
    turns.begin("flooded")
    assert not turns.behind("flooded", "lone", 1.0), "the other is above its share"
    assert turns.behind("flooded", "lone", 6.0)


def test_a_name_that_is_gone_leaves_nothing() -> None:
    turns = FairQueue({"a": 1, "b": 1}, slots=1)
    flood(turns, {"a", "b"}, {"a": 1.0, "b": 1.0}, 4)
    turns.forget("a")
    turns.forget("never")
    assert set(turns._used) == set(turns._began) == {"b"}
