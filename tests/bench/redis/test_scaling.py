"""The benchmark of one Redis still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.redis.scaling import Plan, measure, site


def test_loads_a_slow_redis_threads_and_idle_processes_are_measured() -> None:
    with site() as running:
        (loads, limit, threads, idle), fit = measure(
            running, Plan(apis=2, workers=1, seconds=0.2, rounds=1)
        )
        assert [row[:3] for row in loads.rows] == [
            ("1", "1", "16"), ("2", "1", "32"), ("1", "1", "1"), ("1", "1", "1"),
        ]  # fmt: skip
        assert [row[0] for row in limit.rows] == ["always", "1 ms of 5", "1 ms of 17"]
        assert [row[0] for row in threads.rows] == ["1", "2", "4"]
    assert [row[0] for row in idle.rows] == [
        "one API process, one worker", "each further API process", "each further worker",
    ]  # fmt: skip
    assert "a call" in fit
