"""The benchmark of online answers beside a batch runs, and compares them."""

from __future__ import annotations

from benchmarks.generation.online_during_batch import measure, served


def test_online_answers_beside_a_batch_have_their_ratios() -> None:
    with served(rate=4, seconds=2) as site:
        table, ratios = measure(site, turns=1)
    assert [row[0] for row in table.rows] == ["online alone", "batch alone", "both"]
    assert all(float(row[5]) > 0 for row in table.rows)
    # In two seconds the batch may have had next to nothing.
    assert float(ratios.rows[0][1]) > 0
