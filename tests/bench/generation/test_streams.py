"""The benchmark of streams runs: no piece is lost, and hang-ups make room."""

from __future__ import annotations

from benchmarks.common.tables import Table
from benchmarks.generation.streams import COLUMNS, measure_hang_ups, measure_streams, stack


def test_each_server_has_a_row_and_hang_ups_have_one() -> None:
    table = Table(*COLUMNS)
    with stack() as running:
        measure_streams(table, running, None, clients=4, rounds=1, turns=1)
        assert [row[0] for row in table.rows] == ["bare FastAPI", "Headrace"]
        hang_ups = Table("", "alone", "after", "at most")
        measure_hang_ups(hang_ups, running, 6, turns=1)
    for _, rate, _share, first_ms in table.rows:
        assert float(rate.replace(",", "")) > 0
        assert float(first_ms) > 0
    ((name, *times_s),) = hang_ups.rows
    assert name == "6 clients"
    assert all(float(time_s) >= 0 for time_s in times_s)
