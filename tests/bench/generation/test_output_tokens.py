"""The benchmark of output tokens runs, and counts all of them."""

from __future__ import annotations

import pytest

from benchmarks.common.tables import Table
from benchmarks.generation.output_tokens import COLUMNS, measure


# Three processes load torch and the language model.
@pytest.mark.timeout(900)
def test_each_number_of_clients_has_a_row() -> None:
    table = Table(*COLUMNS)
    measure(table, rounds=1, turns=1, tokens=4, counts=(1, 3))
    assert [row[0] for row in table.rows] == ["1", "3"]
    for row in table.rows:
        assert len(row) == len(COLUMNS)
        # Rates and shares are rounded, so on a machine that stands still they may be 0.
        assert all(float(first_ms) > 0 for first_ms in row[-2:])
