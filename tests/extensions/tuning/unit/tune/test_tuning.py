"""A whole tuning on a simulated server: the real search, journal and report; no process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.tuning.bench.load.targets import Input, Target, target_for
from extensions.tuning.bench.measure import LoadOptions
from extensions.tuning.bench.measurement import Measurement, Objective, Peak, read_measurement
from extensions.tuning.bench.serving import NotServed
from extensions.tuning.optimize.report import Comparison
from extensions.tuning.tune.report import TuneReport, markdown
from extensions.tuning.tune.search import Trial
from extensions.tuning.tune.space import Candidate
from extensions.tuning.tune.trials import outlook
from extensions.tuning.tune.tuning import Compare, Plan, Progress, tune
from headrace.client.models import Model
from headrace.errors import ConfigError, InvalidRequest, ServerUnreachable
from tests.harness.simulated_model import PRESENT, SimulatedModel

FILE = "models:\n  simulated:\n    handler: echo\n    max_batch_size: 32\n"


class SimulatedServer:
    """A deployment of a simulated model, and what finds its peak.

    Attributes:
        refused: returns why it does not serve a candidate.
        lost: how often it has ended during a trial, from now on.
    """

    def __init__(self, model: SimulatedModel, *, private: bool = True) -> None:
        self.url, self.private = "http://127.0.0.1:1", private
        self.model = model
        self.refused: Callable[[Candidate], str] = lambda _: ""
        self.lost = 0
        self.served: list[Candidate] = []
        self.closed = False

    def use(self, candidate: Candidate) -> Model:
        reason = self.refused(candidate)
        if reason:
            raise NotServed(reason)
        self.served.append(candidate)
        worker = {"device": "cpu", "threads": self.model.cores, "replicas": 1}
        return Model(
            name="simulated", version="1.0", queue="q", state="ready", ready_replicas=1,
            workers=[worker],
        )  # fmt: skip

    def check(self) -> None:
        if self.lost:
            self.lost -= 1
            raise ServerUnreachable("the server has ended")

    def close(self) -> None:
        self.closed = True

    def find(
        self,
        target: Target,
        objective: Objective,
        options: LoadOptions,
        *,
        name: str,
        **limits: float,
    ) -> Measurement:
        found = self.model.trial(self.served[-1])
        met = found.rate >= limits["at_least"]
        peak = Peak(rate=found.rate, low=found.low, high=found.high)
        if not met:
            peak = Peak(rate=0.0, low=0.0, high=limits["at_least"])
        return Measurement(
            name=name, model="simulated", url=target.url, started_at="", loads=[], peak=peak
        )


def run(
    folder: Path,
    server: SimulatedServer,
    *,
    compare: Compare = lambda _: None,
    on_trial: Callable[[Trial, str], None] = lambda *_: None,
    **changes: Any,
) -> TuneReport:
    plan = Plan(
        model="simulated", objective=Objective(percentile=99, latency_ms=100.0), budget_s=1000.0,
        folder=folder / "out", present=PRESENT, input="x", where="private",
    )  # fmt: skip
    return tune(
        msgspec.structs.replace(plan, **changes),
        server,
        lambda url: target_for("headrace", url, "simulated", [Input(b"1", "application/json")]),
        compare,
        Progress(on_text=lambda _: None, on_trial=on_trial),
        server.find,
    )


def recorded(folder: Path) -> int:
    """Return how many trials the journal has."""
    return len((folder / "out/trials.jsonl").read_bytes().splitlines()) - 1


def test_a_tuning_writes_a_report_and_a_patch(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(FILE)
    model = SimulatedModel()
    server = SimulatedServer(model)

    report = run(tmp_path, server, compare=lambda _: model.comparison(), models_file=file)

    better = report.better
    assert better is not None
    assert model.peak(better.candidate) > 1.3 * model.peak(report.trials[0].candidate)
    assert report.options["optimize"] == {"backend": "openvino"}
    assert "+    optimize: {backend: openvino}" in report.patch
    assert server.closed
    assert file.read_text() == FILE
    text = (tmp_path / "out/report.md").read_text()
    assert report.verdict in text
    assert (
        " ".join(text.split()).count(f"| present options: {report.trials[0].candidate.label} |")
        == 1
    )
    assert (tmp_path / "out/models.patch").read_text() == report.patch
    decoded = msgspec.json.decode((tmp_path / "out/report.json").read_bytes(), type=TuneReport)
    assert decoded == report
    page = (tmp_path / "out/report.html").read_text()
    assert better.candidate.label in page
    assert report.trials[0].candidate.label in page
    for one in better.trials:
        assert read_measurement(tmp_path / "out" / one.measurement).name == better.candidate.label


def test_without_a_better_one_it_reports_that(tmp_path: Path) -> None:
    report = run(tmp_path, SimulatedServer(SimulatedModel(flat=True)))
    assert report.better is None
    assert report.verdict.startswith("no better than what you have: 2")
    assert (report.options, report.patch) == ({}, "")
    assert "no better than what you have" in markdown(report)
    assert not (tmp_path / "out/models.patch").exists()


def test_an_objective_that_no_rate_meets_is_reported(tmp_path: Path) -> None:
    model = SimulatedModel(objective_ms=30.0)
    report = run(tmp_path, SimulatedServer(model))
    assert report.verdict == "no combination that was measured meets the objective at any rate"


def test_a_resumed_tuning_measures_only_what_is_missing(tmp_path: Path) -> None:
    first = SimulatedServer(SimulatedModel())
    stop_after = 12

    def interrupt(trial: Trial, stage: str) -> None:
        if first.model.measured == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, first, on_trial=interrupt)
    assert first.closed

    second = SimulatedServer(SimulatedModel())
    resumed = run(tmp_path, second, resume=True)

    whole = SimulatedServer(SimulatedModel(seed=5))
    run(tmp_path / "whole", whole)
    assert second.model.measured + stop_after >= len(resumed.trials)
    keys = [trial.candidate.key for trial in resumed.trials]
    assert len(keys) == len(set(keys))
    assert recorded(tmp_path) == stop_after + second.model.measured

    third = SimulatedServer(SimulatedModel())
    again = run(tmp_path, third, resume=True)
    assert third.model.measured == 0
    assert again.trials == resumed.trials
    assert again.confirmation == resumed.confirmation


def test_a_server_of_ours_that_ends_is_started_again(tmp_path: Path) -> None:
    server = SimulatedServer(SimulatedModel(flat=True))
    server.lost = 1
    report = run(tmp_path, server)
    assert report.trials[0].rate > 0
    assert report.trials[0].error == ""


def test_options_that_cannot_be_served_are_a_result(tmp_path: Path) -> None:
    server = SimulatedServer(SimulatedModel())
    server.refused = lambda candidate: (
        "out of memory" if candidate.options.get("replicas", 1) > 1 else ""
    )
    report = run(tmp_path, server)
    errors = [trial.error for trial in report.trials if trial.error]
    # The other numbers of replicas are not tried.
    assert errors == ["out of memory"]
    assert report.better is not None
    assert report.better.candidate.options["replicas"] == 1
    assert "out of memory" in markdown(report)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_model_that_cannot_be_served_as_it_is_is_an_error(tmp_path: Path, at_once: bool) -> None:
    server = SimulatedServer(SimulatedModel())
    server.refused = lambda candidate: "no memory" if candidate.label or at_once else ""
    with pytest.raises(ConfigError, match="cannot be served as it is: no memory"):
        run(tmp_path, server)
    assert server.closed


def test_after_a_failure_before_the_first_trial_the_same_command_works(tmp_path: Path) -> None:
    server = SimulatedServer(SimulatedModel())
    server.refused = lambda _: "no memory"
    with pytest.raises(ConfigError, match="no memory"):
        run(tmp_path, server)
    assert run(tmp_path, SimulatedServer(SimulatedModel())).better is not None


def test_a_server_of_others_that_ends_ends_the_tuning(tmp_path: Path) -> None:
    server = SimulatedServer(SimulatedModel(), private=False)

    def lose(trial: Trial, stage: str) -> None:
        if server.model.measured == 3:
            server.lost = 1

    with pytest.raises(ServerUnreachable):
        run(tmp_path, server, on_trial=lose, where="http://127.0.0.1:1")
    assert server.closed
    # The trials before are kept, and the one that it interrupted is not.
    again = SimulatedServer(SimulatedModel(), private=False)
    report = run(tmp_path, again, where="http://127.0.0.1:1", resume=True)
    assert recorded(tmp_path) == 3 + again.model.measured
    assert report.confirmation is not None


def test_an_input_that_is_refused_ends_the_tuning(tmp_path: Path) -> None:
    server = SimulatedServer(SimulatedModel())

    def refuse(*_: Any, **__: Any) -> Measurement:
        raise InvalidRequest("not an image")

    server.find = refuse  # type: ignore[method-assign]
    with pytest.raises(InvalidRequest, match="not an image"):
        run(tmp_path, server)


@pytest.mark.parametrize(
    ("budget_s", "calibrates", "text"),
    [
        (60.0, False, "60 s have time for 1 trial of about 40 s, and a comparison needs 2"),
        (90.0, True, "90 s have time for 1 trial of about 40 s, and a comparison needs 2"),
        (0.0, False, "0 s have time for 0 trials of about 40 s"),
    ],
)
def test_a_budget_without_time_for_two_trials_is_an_error_before_anything(
    budget_s: float, calibrates: bool, text: str, tmp_path: Path
) -> None:
    server = SimulatedServer(SimulatedModel())
    with pytest.raises(ConfigError, match=text) as raised:
        run(
            tmp_path, server, budget_s=budget_s, calibrates=calibrates,
            compare=lambda _: pytest.fail("it calibrates"),
        )  # fmt: skip
    assert raised.value.hint == "give 2m or more; 5m or more also confirm the result"
    assert server.served == []


@pytest.mark.parametrize(
    ("budget_s", "calibrates", "text"),
    [
        (300.0, True, "the calibration takes up to 60 s; then the budget has time for about 6 "
                      "trials of 40 s: 2 of the search, 4 or more of the confirmation"),
        (240.0, False, "the budget has time for about 6 trials"),
        (120.0, True, "about 2 trials of 40 s, and a confirmed result needs 6: 5m or more"),
        (1200.0, True, "the calibration takes up to 480 s; then the budget has time for about 18"),
    ],
)  # fmt: skip
def test_what_fits_into_the_budget_is_printed_first(
    budget_s: float, calibrates: bool, text: str
) -> None:
    assert text in outlook(budget_s, calibrates=calibrates)


def test_a_resume_with_a_budget_that_is_spent_needs_a_longer_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ended before one trial"):
        run(tmp_path, SimulatedServer(SimulatedModel()), budget_s=0.0, resume=True)


def test_a_trial_that_was_stopped_early_has_no_rate() -> None:
    candidate = Candidate(label="batch 4", options={})
    present = Trial(candidate=Candidate(label="", options={}), rate=57.7, low=57.7, high=60.0)
    cut = Trial(candidate=candidate, rate=0.0, low=0.0, high=57.7, cut="less than 57.7/s")
    failed = Trial(candidate=candidate, rate=0.0, low=0.0, error="no memory")
    slow = Trial(candidate=candidate, rate=0.0, low=0.0, high=2.3)
    report = TuneReport(
        model="m", objective=Objective(percentile=99, latency_ms=1.0), where="private", input="x",
        budget_s=1, seconds=1, points=1, complete=False, trials=[present, cut, failed, slow],
    )  # fmt: skip
    text = " ".join(markdown(report).split())
    assert "| batch 4 | less than 57.7/s | ended early | 0 s |" in text
    assert "| batch 4 | not measured | no memory | 0 s |" in text
    assert "| batch 4 | less than 2.3/s | below 2.3 | 0 s |" in text
    assert "| 0.0" not in text
    assert "the best so far is the present options with 57.7/s" in report.verdict


def test_a_calibration_that_was_cut_off_is_measured_again_if_there_is_time(tmp_path: Path) -> None:
    model = SimulatedModel()
    whole = model.comparison()
    cut = msgspec.structs.replace(whole, variants=whole.variants[:1], cut=True)
    calls: list[str] = []

    def comparing(name: str, found: Comparison | None) -> Compare:
        def compare(_: float) -> Comparison | None:
            calls.append(name)
            return found

        return compare

    first = run(tmp_path, SimulatedServer(model), compare=comparing("cut", cut))
    assert "optimize" not in first.options
    # The budget is spent: the report is made of what there is.
    run(tmp_path, SimulatedServer(model), compare=comparing("spent", whole), resume=True,
        budget_s=0.0)  # fmt: skip
    # Nothing new comes of it: what there is stays.
    run(tmp_path, SimulatedServer(model), compare=comparing("none", None), resume=True)
    report = run(tmp_path, SimulatedServer(model), compare=comparing("whole", whole), resume=True)
    run(tmp_path, SimulatedServer(model), compare=comparing("again", whole), resume=True)

    assert calls == ["cut", "none", "whole"]
    assert report.options["optimize"] == {"backend": "openvino"}


def test_an_objective_that_no_variant_can_meet_is_an_error(tmp_path: Path) -> None:
    model = SimulatedModel()
    with pytest.raises(ConfigError, match="can meet 10 ms"):
        run(
            tmp_path, SimulatedServer(model), compare=lambda _: model.comparison(),
            objective=Objective(percentile=99, latency_ms=10.0),
        )  # fmt: skip
