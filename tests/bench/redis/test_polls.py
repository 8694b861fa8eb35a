"""The benchmark of polls still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.redis.polls import POLLS, add_probe, measure
from benchmarks.redis.scaling import site


def test_polls_and_the_probe_of_a_worker_are_measured() -> None:
    with site() as running:
        table = measure(running, pods=5, seconds=1)
        add_probe(table, running, probes=1)
    assert [row[0] for row in table.rows] == [*POLLS, "`headrace health worker --models`"]
