"""The benchmark of bulk submits still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bulk import measure_bulk
from benchmarks.stack import Headrace, bare_fastapi


def test_a_round_is_measured(tmp_path: Path) -> None:
    with bare_fastapi(tmp_path) as (bare, _), Headrace(events=False) as stack:
        found = measure_bulk(stack, bare, 1000, 1)
    assert found.rate > 0
    assert found.ratio > 0
    assert found.cpu["api"] > 0
