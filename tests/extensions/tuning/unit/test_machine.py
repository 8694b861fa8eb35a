"""Every report of a measurement begins with a warning if the machine was busy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extensions.tuning.bench import report as bench_report
from extensions.tuning.bench.measurement import Objective, with_load_of
from extensions.tuning.cli import bench, optimize, tune
from extensions.tuning.machine import busy_warning, load_facts
from extensions.tuning.optimize import page
from extensions.tuning.optimize.report import Comparison
from extensions.tuning.tune.report import TuneReport, markdown
from extensions.tuning.tune.search import Trial
from extensions.tuning.tune.space import Candidate
from tests.extensions.tuning.harness.measurements import measurement

BUSY: dict[str, Any] = {"load_before": 15.9, "host_cores": 2}
TEXT = "The machine was busy before the measurement: load average 15.9 on 2 cores."


@pytest.mark.parametrize(
    ("load", "cores", "busy"),
    [(0.99, 2, False), (1.0, 2, True), (1.0, 1, True), (7.0, 16, False), (None, 2, False)],
)
def test_a_load_of_half_of_the_cores_is_busy(load: float | None, cores: int, busy: bool) -> None:
    text = busy_warning({"load_before": load, "host_cores": cores})
    assert (text != "") is busy
    assert not busy or text.endswith("after other work has ended.")


def test_the_facts_of_this_machine_are_enough() -> None:
    facts = load_facts()
    assert facts["host_cores"] > 0
    assert busy_warning({**facts, "load_before": 1e6})
    assert busy_warning({}) == ""
    assert busy_warning({"load_before": "9", "host_cores": [1]}) == ""


def test_all_reports_begin_with_the_warning(capsys: pytest.CaptureFixture[str]) -> None:
    found = measurement(environment=BUSY)
    compared = Comparison(model="m", device="cpu", variants=[], environment=BUSY)
    trial = Trial(candidate=Candidate(label="", options={}), rate=1.0, low=1.0)
    tuned = TuneReport(
        model="m", objective=Objective(percentile=99, latency_ms=1.0), where="private", input="x",
        budget_s=1, seconds=1, points=1, complete=False, trials=[trial], environment=BUSY,
    )  # fmt: skip
    for text in (bench_report.html([found, found]), page.html(compared)):
        assert text.count(TEXT) == 1
        assert text.partition("</h1>")[2].startswith('<div class="box missed"><p class="bad">The')
    assert bench_report.markdown([found]).startswith(f"**{TEXT}")
    assert markdown(tuned).splitlines()[2].startswith(f"**{TEXT}")
    prints: list[Callable[[], None]] = [
        lambda: bench._print(found),
        lambda: optimize._print(compared),
        lambda: tune._print(tuned, Path(), applied=False),
    ]
    for print_report in prints:
        print_report()
        assert capsys.readouterr().err.startswith(f"headrace: {TEXT}")


def test_a_series_has_the_load_before_its_first_measurement() -> None:
    first = measurement(environment={**BUSY, "load_before": 0.1})
    later = measurement(environment=BUSY)
    assert busy_warning(later.environment)
    assert busy_warning(with_load_of(first, later).environment) == ""
