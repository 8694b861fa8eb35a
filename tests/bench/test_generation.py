"""The benchmark of language models runs, and counts all tokens."""

from __future__ import annotations

from benchmarks.generation import CLIENTS, COLUMNS, measure
from benchmarks.generation_classes import measure as compare
from benchmarks.generation_classes import served
from benchmarks.tables import Table


def test_each_number_of_clients_has_a_row() -> None:
    table = Table(*COLUMNS)
    measure(table, rounds=1, turns=1, tokens=4)
    assert [row[0] for row in table.rows] == [str(clients) for clients in CLIENTS]
    for row in table.rows:
        assert len(row) == len(COLUMNS)
        # Rates and shares are rounded, so on a machine that stands still they may be 0.
        assert all(float(first_ms) > 0 for first_ms in row[-2:])


def test_online_answers_beside_a_batch_have_their_ratios() -> None:
    with served(rate=4, seconds=2) as site:
        table, ratios = compare(site, turns=1)
    assert [row[0] for row in table.rows] == ["online alone", "batch alone", "both"]
    assert all(float(row[5]) > 0 for row in table.rows)
    # In two seconds the batch may have had next to nothing.
    assert float(ratios.rows[0][1]) > 0
