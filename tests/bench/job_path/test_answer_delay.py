"""The benchmark of wake-ups still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.job_path.answer_delay import callers, measure


def test_a_round_is_measured() -> None:
    with callers() as (client, own, foreign):
        # The kernel stamps packets from a moment after it was asked to: the first may have none.
        measure(client, own, foreign)
        submitted, waited = measure(client, own, foreign)
    for span in (submitted, waited):
        assert 0 < span.answered_s < span.read_s
