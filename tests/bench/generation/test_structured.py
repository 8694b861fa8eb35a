"""The benchmark of masks runs, with answers of full length in each kind."""

from __future__ import annotations

from benchmarks.generation.structured import KINDS, loaded, measure


def test_each_kind_of_mask_is_compared_with_none() -> None:
    with loaded() as model:
        table = measure(model, rounds=1, tokens=6)
    assert [row[0] for row in table.rows] == list(KINDS)
    assert table.rows[0][2:] == ("1.00", "1.00", "1.00")
    assert all(float(row[2]) > 0 for row in table.rows)
