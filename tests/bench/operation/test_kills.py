"""The benchmark of kills still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.operation import kills


def test_a_killed_model_process_costs_time_alone() -> None:
    with kills.site() as running:
        first_s, last_s = running.killed(3)
    assert 0 < first_s <= last_s


def test_a_killed_worker_costs_time_alone() -> None:
    assert kills.worker_killed() > 0
