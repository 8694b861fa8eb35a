"""What is known of the time that batches take, who is too late, and how often to restart."""

from __future__ import annotations

from collections import deque

from headrace.catalog import ModelConfig
from headrace.telemetry import ModelStats
from workers.batcher import Batcher, Policy
from workers.deadlines import (
    LEAST_AGE_S,
    LEAST_BATCHES,
    NEVER,
    Deadlines,
    Expiring,
    LeastTime,
)
from workers.items import Item
from workers.restarts import WINDOW_S, Restarts


def item(name: str, expires_at: float = NEVER) -> Item:
    return Item(
        id=name, token=name, message=None, created_us=0, enqueued_at=0, claimed_at=0, attempts=1,
        alone=False, expires_at=expires_at,
    )  # fmt: skip


def seen(batches: int, seconds: float = 1.0, at: float = 0.0) -> LeastTime:
    least = LeastTime()
    for _ in range(batches):
        least.add(seconds, at)
    return least


def test_the_least_time_is_half_of_the_shortest_of_enough_fresh_batches() -> None:
    assert seen(LEAST_BATCHES - 1).at(0) == 0
    least = seen(LEAST_BATCHES)
    assert least.at(0) == 0.5
    least.add(0.2, 1)
    assert least.at(1) == 0.1
    # Of the long ago nothing is said, so that what refused everybody is tried again.
    assert least.at(LEAST_AGE_S + 1) == 0
    least.forget()
    assert least.at(1) == 0


def test_a_short_batch_counts_until_enough_others_have_run() -> None:
    least = seen(LEAST_BATCHES, 0.2)
    for _ in range(LEAST_BATCHES - 1):
        least.add(1.0, 1)
    assert least.at(1) == 0.1
    least.add(1.0, 1)
    assert least.at(1) == 0.5


def test_what_expires_is_taken_in_time_and_what_has_left_is_not() -> None:
    expiring = Expiring()
    early, later, gone = item("early", 5), item("later", 9), item("gone", 4)
    for one in (later, early, gone):
        expiring.add(one)
    assert expiring.next_at == 4
    expiring.left([gone, item("nobody")])
    assert expiring.take(3.9) == []
    assert expiring.take(5) == [early]
    assert expiring.next_at == 9
    expiring.left([later])
    assert expiring.next_at == NEVER
    assert expiring.take(100) == []


def test_only_what_still_waits_ends_as_expired() -> None:
    deadlines = Deadlines(ModelConfig(name="m", handler="echo"), ModelStats())
    batcher: Batcher[Item] = Batcher(Policy(4, 0.0))
    early, later = item("early", 5), item("later", 9)
    for one in (early, later):
        batcher.add(one)
        deadlines._expiring.add(one)
    deadlines.expire(batcher, 6)
    assert [settlement.id for settlement in deadlines.ended] == ["early"]
    assert batcher.take_all() == [later]


def test_without_an_estimate_every_timeout_is_tried() -> None:
    model = ModelConfig(name="m", handler="echo", timeout_s=0.3, min_timeout_s=0.2)
    deadlines = Deadlines(model, ModelStats())
    jobs = [item("a"), item("b")]
    assert deadlines.in_time(jobs, 0) == jobs
    for seconds, kept in ((0.6, 2), (0.62, 0)):
        deadlines.least = seen(LEAST_BATCHES, seconds)
        assert len(deadlines.in_time(jobs, 0)) == kept
    assert [settlement.state for settlement in deadlines.ended] == ["x", "x"]


def test_restarts_are_bounded_in_any_window() -> None:
    most = 3
    restarts = Restarts(most)
    lost: deque[float] = deque()
    now = 0.0
    for _ in range(50):
        now = restarts.earliest(now)
        lost.append(now)
        restarts.add(now, "it died")
        now += 7.5
        assert sum(at > lost[-1] - WINDOW_S for at in lost) <= most
    assert restarts.lost == 50


def test_what_is_told_of_restarts() -> None:
    restarts = Restarts(2)
    restarts.add(100, "it died")
    assert (restarts.earliest(100), restarts.told(100)) == (100, "")
    restarts.add(110, "a job ran longer than its timeout\nin one")
    assert restarts.earliest(110) == 160
    told = restarts.told(110)
    assert "the next one is started in 50 s" in told
    assert told.endswith("a job ran longer than its timeout\nin one")
    assert restarts.told(160) == ""
