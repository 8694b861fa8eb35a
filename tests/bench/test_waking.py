"""The benchmark of wake-ups still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.waking import callers, measure


def test_a_round_is_measured() -> None:
    with callers() as (client, own, foreign):
        submitted_s, waited_s = measure(client, own, foreign)
    assert submitted_s > 0
    assert waited_s > 0
