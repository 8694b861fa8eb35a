"""How often lost processes start again."""

from __future__ import annotations

from collections import deque

from headrace.observability.worker_report import ModelStats
from workers.replicas.history import CAUSES_MAX, WINDOW_S, ReplicaHistory


def test_restarts_are_bounded_in_any_window() -> None:
    most = 3
    restarts = ReplicaHistory(most, ModelStats())
    lost: deque[float] = deque()
    now = 0.0
    for _ in range(50):
        now = restarts.restart_at(now)
        lost.append(now)
        restarts.add_loss(now, "it died")
        now += 7.5
        assert sum(at > lost[-1] - WINDOW_S for at in lost) <= most
    assert restarts.lost == 50


def test_a_loss_whose_cause_is_known_does_not_count() -> None:
    restarts = ReplicaHistory(2, ModelStats())
    for now in range(CAUSES_MAX - 1):
        bad = f"bad-{now}"
        restarts.add_loss(now, "it died", jobs=[bad, "good"])
        restarts.add_loss(now, "it died", jobs=[bad], cause=bad)
        assert restarts.restart_at(now) == now
    restarts.add_loss(20, "it died", jobs=["one"])
    restarts.add_loss(21, "it died", jobs=["other"])
    assert restarts.restart_at(21) == 80
    restarts.add_batch()
    restarts.add_loss(22, "it died", cause="one")
    assert restarts.restart_at(22) == 22
    assert restarts.lost == 2 * (CAUSES_MAX - 1) + 3


def test_a_model_that_crashes_on_every_input_waits() -> None:
    restarts = ReplicaHistory(3, ModelStats())
    for now in range(CAUSES_MAX):
        assert restarts.restart_at(now) == now
        restarts.add_loss(now, "it died", cause=f"bad-{now}")
    assert restarts.restart_at(CAUSES_MAX) == CAUSES_MAX - 3 + WINDOW_S
    assert "no single job is the cause" in restarts.wait_reason(CAUSES_MAX)
    restarts.add_batch()
    assert restarts.restart_at(CAUSES_MAX) == CAUSES_MAX


def test_what_is_told_of_restarts() -> None:
    restarts = ReplicaHistory(2, ModelStats())
    restarts.add_loss(100, "it died")
    assert (restarts.restart_at(100), restarts.wait_reason(100)) == (100, "")
    restarts.add_loss(110, "a job ran longer than its timeout\nin one")
    assert restarts.restart_at(110) == 160
    told = restarts.wait_reason(110)
    assert "the next one starts in 50 s" in told
    assert told.endswith("a job ran longer than its timeout\nin one")
    assert restarts.wait_reason(160) == ""
