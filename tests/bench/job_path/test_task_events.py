"""The benchmark of task events still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.job_path.task_events import PROCESSES, site


def test_both_kinds_of_load_are_measured() -> None:
    with site() as running:
        rate, spent = running.drained("sampled", 1000)
        shares = running.paced("all", 100, 0.2)
    assert rate > 0
    assert set(spent) == set(shares) == set(PROCESSES)
    assert spent["worker"] > 0
