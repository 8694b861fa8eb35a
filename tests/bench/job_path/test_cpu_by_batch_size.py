"""The benchmark of CPU time by batch size still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.job_path import cpu_by_batch_size


def test_a_drain_is_measured_by_process() -> None:
    with cpu_by_batch_size.site((8,)) as running:
        rate, spent = running.drain(8, 500)
    assert rate > 0
    assert spent["worker"] > 0
