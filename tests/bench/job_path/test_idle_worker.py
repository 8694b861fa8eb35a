"""The benchmark of the idle worker still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.job_path.idle_worker import idle_share, site, woken_ms


def test_idle_time_and_both_kinds_of_waking_are_measured() -> None:
    with site(models=2) as running:
        assert min(idle_share(running, 0.2)) >= 0
        for number in range(2):
            for stock in (False, True):
                assert woken_ms(running, number, stock=stock) > 0
