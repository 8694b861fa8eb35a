"""The benchmark of reloads still runs, and no job is lost, mixed or run twice."""

from __future__ import annotations

import asyncio

from benchmarks.models.reloads import measure, site


def test_reloads_under_load_are_measured() -> None:
    with site() as running:
        calm, reloaded = asyncio.run(measure(running, reloads=2, calm_s=0.5))
    assert calm.processes == 1 < reloaded.processes
    for outcome in (calm, reloaded):
        assert outcome.jobs > 0
        assert (outcome.lost, outcome.mixed, outcome.again) == ([], [], [])
