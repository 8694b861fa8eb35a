"""The case study still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from pathlib import Path

from benchmarks.case_study.__main__ import detector_steps, table, walk
from tests.harness.variants import IMAGES


def test_the_steps_are_measured(tmp_path: Path) -> None:
    rows = walk(tmp_path, "detector", IMAGES, detector_steps(IMAGES, quick=True), 1.0)
    made = table("detector", rows)
    assert len(made.rows) == 2
    assert all(load.succeeded for row in rows for load in row.loads.values())
