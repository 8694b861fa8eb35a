"""The benchmark of lines that begin alike runs, and the cache changes no answer."""

from __future__ import annotations

import pytest

from benchmarks.generation.prefix import measure, served

LINES = 12


@pytest.mark.timeout(900)
def test_lines_that_begin_alike_find_their_beginning_in_the_cache() -> None:
    with served(LINES, tokens=4) as site:
        table, ratios = measure(site, LINES, turns=1)
    assert [row[0] for row in table.rows] == ["without", "with"]
    without, cached = (float(row[3].rstrip("%")) for row in table.rows)
    assert without == 0
    assert cached > 50
    assert ratios.rows[-1] == ("equal answers", *[str(LINES)] * 3)
