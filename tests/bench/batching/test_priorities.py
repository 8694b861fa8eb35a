"""The benchmark of priorities still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.batching.priorities import measure, site


def test_a_run_beside_a_flood_is_measured() -> None:
    with site() as running:
        found = measure(running, 5, "other")
    assert len(found.online_ms) == 5
    assert min(found.online_ms) > 0
