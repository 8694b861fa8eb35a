"""The benchmark of online answers beside a batch runs, and compares them."""

from __future__ import annotations

import math

import pytest

from benchmarks.generation import online_during_batch
from benchmarks.generation.online_during_batch import Run, share_of_rest


@pytest.mark.timeout(900)
def test_online_answers_beside_a_batch_have_their_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    # Short lines, and enough of them for both runs.
    monkeypatch.setattr(online_during_batch, "LINES", 3000)
    monkeypatch.setattr(online_during_batch, "LINE_TOKENS", 16)
    # Only the figures need a load before the measured one, and a quiet time.
    monkeypatch.setattr(online_during_batch, "BEGIN_S", 0.5)
    monkeypatch.setattr(online_during_batch, "ONLINE_S", 0.0)
    with online_during_batch.served(rate=4, seconds=1) as site:
        table, ratios = online_during_batch.measure(site, turns=1)
    assert [row[0] for row in table.rows] == ["online alone", "batch alone", "both"]
    # Online answers came in the first and the last run, and the batch had tokens in the second.
    assert [bool(row[1]) for row in table.rows] == [True, False, True]
    assert table.rows[1][4]
    # After a stall each ratio may be 0 or very large.
    for _, measured, _aim in ratios.rows:
        float(measured)


def test_a_machine_that_stands_still_leaves_nothing_to_the_batch() -> None:
    online, both = Run(answers=1.0), Run(answers=1.0, batch=8.0, cpu=0.5)
    assert share_of_rest(online, Run(batch=16.0, cpu=1.0), both) == 1
    assert share_of_rest(online, Run(batch=16.0), both) == math.inf
    assert share_of_rest(online, Run(batch=16.0, cpu=1.0), Run(answers=1.0)) == math.inf
