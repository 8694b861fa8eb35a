"""The trial in which a budget ends is kept, and a resumed tuning finishes what had begun."""

from __future__ import annotations

from pathlib import Path

import pytest
from typing_extensions import override

from extensions.tuning.bench.load.targets import Target
from extensions.tuning.bench.measure import LoadOptions
from extensions.tuning.bench.measurement import Measurement, Objective
from extensions.tuning.optimize.report import Comparison
from extensions.tuning.tune import trials, tuning
from extensions.tuning.tune.search import Trial
from headrace.errors import ConfigError
from tests.extensions.tuning.harness.measurements import load
from tests.extensions.tuning.unit.tune.test_tuning import SimulatedServer, recorded, run
from tests.harness.simulated_model import SimulatedModel

LOADS = 4
LOAD_S = 10.0
TRIAL_S = LOADS * LOAD_S
CLOCK_BEGINS = 1000.0


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = CLOCK_BEGINS

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(trials, "time", found)
    monkeypatch.setattr(tuning, "time", found)
    return found


class SlowServer(SimulatedServer):
    """A simulated server each of whose trials has some loads, which take time.

    Attributes:
        load_s: how long a load takes.
        stop_in: the number of the load, of all, that Ctrl-C ends; 0 for none.
        sent: the label of the candidate of each load that was sent.
    """

    def __init__(self, clock: Clock, *, load_s: float = LOAD_S, stop_in: int = 0) -> None:
        super().__init__(SimulatedModel())
        self._clock = clock
        self.load_s = load_s
        self.stop_in = stop_in
        self.sent: list[str] = []

    @override
    def find(
        self,
        target: Target,
        objective: Objective,
        options: LoadOptions,
        *,
        name: str,
        **limits: float,
    ) -> Measurement:
        assert options.on_load is not None
        for n in range(LOADS):
            self._clock.now += self.load_s
            self.sent.append(name)
            if len(self.sent) == self.stop_in:
                raise KeyboardInterrupt
            options.on_load(load(rate=float(n)))
        return super().find(target, objective, options, name=name, **limits)


def test_a_load_that_is_longer_than_the_budget_is_not_sent(tmp_path: Path, clock: Clock) -> None:
    server = SlowServer(clock)

    def begin(target: Target, objective: Objective, options: LoadOptions, **_: object) -> None:
        assert options.on_begin is not None
        options.on_begin(1001.0)
        pytest.fail("the load is sent")

    server.find = begin  # type: ignore[method-assign, assignment]
    with pytest.raises(ConfigError, match="ended before one trial"):
        run(tmp_path, server, budget_s=1000.0)


def test_five_minutes_find_and_confirm_the_fastest_variant(tmp_path: Path, clock: Clock) -> None:
    server = SlowServer(clock)

    def compare(limit_s: float) -> Comparison:
        clock.now += limit_s
        return server.model.comparison()

    report = run(tmp_path, server, budget_s=300.0, calibrates=True, compare=compare)
    assert report.better is not None
    assert report.options["optimize"] == {"backend": "openvino"}
    assert report.confirmation is not None
    assert report.confirmation.rounds == 2
    # The present options, and what the calibration has found best.
    assert len(report.trials) == 2
    assert clock.now - CLOCK_BEGINS <= 300.0


def test_the_trial_in_which_the_budget_ends_is_measured_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A budget that seems to be enough, as the trials take longer than others.
    monkeypatch.setattr(tuning, "outlook", lambda *_, **__: "")
    first = SlowServer(clock)
    with pytest.raises(ConfigError, match="ended before one trial"):
        run(tmp_path, first, budget_s=2.5 * LOAD_S)
    present = first.sent[0]
    assert first.sent == [present] * 3
    assert recorded(tmp_path) == 0

    second = SlowServer(clock)
    report = run(tmp_path, second, budget_s=100 * TRIAL_S, resume=True)
    assert second.sent[: LOADS + 1].count(present) == LOADS
    assert report.trials[0].seconds == TRIAL_S
    assert report.seconds == LOAD_S * len(second.sent)


def test_an_interrupted_trial_is_measured_again(tmp_path: Path, clock: Clock) -> None:
    first = SlowServer(clock, stop_in=2 * LOADS + 3)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, first, budget_s=100 * TRIAL_S)
    assert recorded(tmp_path) == 2

    second = SlowServer(clock)
    run(tmp_path, second, budget_s=100 * TRIAL_S, resume=True)
    interrupted = first.sent[-1]
    assert second.sent[:LOADS] == [interrupted] * LOADS
    assert second.sent[LOADS] != interrupted


def test_a_calibration_may_take_a_part_of_the_time_that_is_left(
    tmp_path: Path, clock: Clock
) -> None:
    limits: list[float] = []
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, SlowServer(clock, stop_in=2 * LOADS + 1), budget_s=10 * TRIAL_S,
            compare=limits.append)  # fmt: skip
    # It could not be measured, so a resume tries again, if there is time.
    for more_s in (LOAD_S, 0.0):
        run(tmp_path, SlowServer(clock), budget_s=2 * TRIAL_S + more_s, compare=limits.append,
            resume=True)  # fmt: skip
    assert limits == [pytest.approx(4 * TRIAL_S), pytest.approx(0.2 * LOAD_S)]


def test_a_resume_finishes_the_confirmation_that_had_begun(tmp_path: Path, clock: Clock) -> None:
    first = SlowServer(clock)
    order: list[tuple[str, str]] = []

    def note(trial: Trial, stage: str) -> None:
        order.append((stage, trial.candidate.label))
        # The third trial of the confirmation takes longer than the budget does.
        if len([one for one, _ in order if one != "search"]) == 2:
            first.load_s = 1000 * LOAD_S

    report = run(tmp_path, first, budget_s=16 * TRIAL_S, on_trial=note)
    assert report.confirmation is None
    assert not report.complete
    searched = recorded(tmp_path) - 2
    interrupted = first.sent[-1]

    # The budget would be enough for more of the search too.
    second = SlowServer(clock)
    order.clear()
    spent_s = report.seconds
    resumed = run(tmp_path, second, budget_s=spent_s + 1000 * TRIAL_S, on_trial=note, resume=True)
    assert resumed.confirmation is not None
    assert resumed.confirmation.rounds == 4
    assert len(resumed.trials) == searched
    labels = [label for stage, label in order if stage == "round 1"]
    assert len(labels) == 1 + len(resumed.confirmation.others)
    for number, turn in ((2, labels[::-1]), (3, labels), (4, labels[::-1])):
        assert [label for stage, label in order if stage == f"round {number}"] == turn
    # Of the first round the trial of the present options is kept, and that of the interrupted one
    # is not.
    assert second.sent.count(interrupted) == 4 * LOADS

    # After the end of the confirmation a resume goes on with the search.
    third = SlowServer(clock)
    more = run(tmp_path, third, budget_s=resumed.seconds + 1000 * TRIAL_S, resume=True)
    assert more.complete
    assert len(more.trials) > len(resumed.trials)
    assert more.confirmation is not None
    assert more.confirmation.rounds == 4


def test_a_confirmed_result_stays_if_no_time_is_left(tmp_path: Path, clock: Clock) -> None:
    run(tmp_path, SlowServer(clock), budget_s=16 * TRIAL_S)
    report = run(tmp_path, SlowServer(clock), budget_s=1000 * TRIAL_S, resume=True)
    assert report.confirmation is not None
    assert not report.complete
    # Enough for some more trials of the search, and not for another confirmation.
    budget_s = report.seconds + 4 * TRIAL_S
    again = run(tmp_path, SlowServer(clock), budget_s=budget_s, resume=True)
    assert len(again.trials) > len(report.trials)
    assert again.confirmation == report.confirmation
