"""The case study still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.case_study.__main__ import QUICK, Row, answers, detector_steps, table, walk
from tests.extensions.tuning.harness.measurements import load
from tests.harness.variants import IMAGES


# Two servers start, each with a process that loads torch, and four commands measure them.
@pytest.mark.timeout(900)
def test_the_steps_are_measured(tmp_path: Path) -> None:
    rows = walk(tmp_path, "detector", IMAGES, detector_steps(IMAGES, quick=True), QUICK)
    assert len(table("detector", rows).rows) == 2
    for row in rows:
        assert {clients: found.succeeded for clients, found in row.loads.items()} == {1: 10, 10: 10}
        assert all(found.rate > 0 for found in row.loads.values())


def test_a_load_without_a_rate_has_no_figures_and_is_no_answer() -> None:
    none, some = load(0.0, rate=0.0), load(20.0, rate=20.0)
    rows = [Row("first", {1: some, 10: none}), Row("second", {1: none, 10: some})]
    assert [row[1:] for row in table("", rows).rows] == [
        ("20.0", "52", "-", "-", "-", "-"),
        ("-", "-", "20.0", "52", "-", "0.0014"),
    ]
    assert [row[1:3] for row in answers(rows[:1]).rows] == [("first", "1")] * 3
    assert [row[1] for row in answers([Row("third", {1: none})]).rows] == ["none"] * 3
