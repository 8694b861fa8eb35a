"""The case study still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.case_study import drawings
from benchmarks.case_study.__main__ import QUICK, Row, answers, detector_steps, table, walk
from extensions.tuning.bench.measurement import Objective
from extensions.tuning.tune.confirmation import Confirmation, Confirmed
from extensions.tuning.tune.report import TuneReport
from extensions.tuning.tune.search import Trial
from extensions.tuning.tune.space import Candidate
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


# Three processes load torch, and one form is built and compared.
@pytest.mark.timeout(600)
def test_the_forms_of_the_drawings_models_are_compared(tmp_path: Path) -> None:
    quick = ("--variants", "eager:bfloat16", "--rounds", "3", "--sizes", "1")
    builds = tmp_path / "state" / "optimized"
    builds.mkdir(parents=True)
    found = drawings.compared(drawings.DETECTOR, tmp_path, builds, quick)
    rows = drawings.forms(found).rows
    assert [row[0] for row in rows] == ["float", "bfloat16"]
    assert rows[0][2:] == ("1.00", "0", "yes")
    assert 0 < float(rows[1][3]) < 0.05


def test_the_fastest_case_of_each_form_has_its_cost() -> None:
    row = {"Workers": "1", "Batch size": "8", "TS throughput": "50", "TS latency P99": "90.4"}
    found = {"float": [row, {**row, "Workers": "2", "TS throughput": "80"}], "openvino": [row]}
    assert drawings.costs(found).rows == [
        ("float", "2, 8", "80", "90", "0.0003"),
        ("openvino", "1, 8", "50", "90", "0.0006"),
    ]
    swept = {name: cells for name, *cells in drawings.sweep_table(found).rows}
    assert swept["1, 8"] == ["50, 90", "50, 90"]
    assert swept["2, 8"] == ["80, 90", "-"]


def test_what_headrace_tune_has_confirmed_has_its_cost() -> None:
    def confirmed(label: str, rate: float) -> Confirmed:
        candidate = Candidate(label=label, options={})
        return Confirmed(candidate=candidate, rate=rate, low=rate - 1, high=rate + 1, trials=[])

    present, best = confirmed("", 20.0), confirmed("optimize=openvino float", 50.0)
    trials = [Trial(candidate=present.candidate, rate=19.0, low=19.0, high=21.0)]
    report = TuneReport(
        model="m", objective=Objective(percentile=95, latency_ms=200), where="private",
        input="drawings", budget_s=480, seconds=400, points=9, complete=True, trials=trials,
    )  # fmt: skip
    confirmation = Confirmation(present=present, others=[best], rounds=2)
    told = drawings.tune_table(msgspec.structs.replace(report, confirmation=confirmation))
    assert told.columns[0] == "p95 within 200 ms"
    assert told.rows == [
        ("the present options", "20 (19 to 21)", "0.0014"),
        ("optimize=openvino float", "50 (49 to 51)", "0.0006"),
    ]
    assert drawings.tune_table(report).rows == [("the present options", "19", "0.0015")]
