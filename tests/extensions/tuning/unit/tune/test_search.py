"""The search on a simulated model, whose optimum is known."""

from __future__ import annotations

from itertools import product

import pytest

from extensions.tuning.tune.calibration import calibrated, start_of
from extensions.tuning.tune.confirmation import confirm, interval
from extensions.tuning.tune.search import BudgetSpent, Found, Trial, search
from extensions.tuning.tune.space import Candidate, Space, space_of
from headrace.config.model.optimize import Optimize
from tests.harness.simulated_model import PRESENT, SPEEDS, SimulatedModel


def whole_space(model: SimulatedModel) -> Space:
    """The grid without any calibration."""
    return space_of(
        PRESENT,
        objective_ms=model.objective_ms,
        cores=model.cores,
        variants=[Optimize(backend=backend) for backend in SPEEDS],  # type: ignore[arg-type]
    )


def tuned(model: SimulatedModel) -> Found:
    """Calibrate and search as the command does."""
    calibration = calibrated(model.comparison(), model.objective_ms)
    space = space_of(
        PRESENT,
        objective_ms=model.objective_ms,
        cores=model.cores,
        variants=[variant.optimize for variant in calibration.variants],
        batch_max=calibration.batch_max,
    )
    return search(space, start_of(space, calibration), model.trial)


def optimum(model: SimulatedModel) -> tuple[float, int]:
    """The highest true peak of the grid, and the number of its points."""
    space = whole_space(model)
    points = list(product(*(range(len(axis.choices)) for axis in space.axes)))
    return max(model.peak(space.candidate(point)) for point in points), len(points)


@pytest.mark.parametrize("objective_ms", [60.0, 100.0, 250.0])
@pytest.mark.parametrize("cores", [1, 2, 4])
def test_the_search_finds_the_optimum_with_a_tenth_of_the_grid(
    cores: int, objective_ms: float
) -> None:
    best, grid = optimum(SimulatedModel(cores=cores, objective_ms=objective_ms))
    good = 0
    for seed in range(5):
        model = SimulatedModel(seed=seed, cores=cores, objective_ms=objective_ms)

        found = tuned(model)

        assert found.complete
        assert len(found.trials) <= 0.1 * grid
        others = [trial.candidate for trial in found.best(3)]
        confirmation = confirm(found.present.candidate, others, model.again)
        assert confirmation is not None
        assert confirmation.better is not None
        good += model.peak(confirmation.better.candidate) >= 0.95 * best
    assert good == 5


# Of 300 seeds each it was 0, 6 and 6 times: 2 % at most.
@pytest.mark.parametrize(("noise", "seeds"), [(0.01, 40), (0.05, 100), (0.1, 40)])
def test_of_equal_configurations_none_is_better(noise: float, seeds: int) -> None:
    claimed = 0
    for seed in range(seeds):
        model = SimulatedModel(seed=seed, noise=noise, flat=True)
        found = tuned(model)
        others = [trial.candidate for trial in found.best(3)]
        confirmation = confirm(found.present.candidate, others, model.again)
        assert confirmation is not None
        claimed += confirmation.better is not None
    assert claimed <= seeds / 20  # 19 of 20 are right


def test_a_better_configuration_is_confirmed_in_turns() -> None:
    model = SimulatedModel(seed=1)
    found = tuned(model)
    order: list[str] = []

    def measure(candidate: Candidate, number: int) -> Trial:
        order.append(candidate.key)
        return model.again(candidate, number)

    others = [trial.candidate for trial in found.best(3)]
    confirmation = confirm(found.present.candidate, others, measure)

    assert confirmation is not None
    assert confirmation.better is not None
    assert confirmation.better.low > confirmation.present.high
    a, b, c, d = (one.key for one in [found.present.candidate, *others])
    assert order == [a, b, c, d, d, c, b, a] * 2


def test_a_search_whose_budget_ends_returns_what_it_has() -> None:
    model = SimulatedModel()

    def measure(candidate: Candidate, floor: float) -> Trial:
        if model.measured == 5:
            raise BudgetSpent
        return model.trial(candidate, floor)

    space = whole_space(model)
    found = search(space, space.present, measure)

    assert not found.complete
    assert len(found.trials) == 5


def test_a_search_without_one_trial_reports_it() -> None:
    def measure(candidate: Candidate, floor: float) -> Trial:
        raise BudgetSpent

    space = whole_space(SimulatedModel())
    with pytest.raises(BudgetSpent):
        search(space, space.present, measure)


def test_a_confirmation_needs_two_rounds() -> None:
    model = SimulatedModel()

    def measure(candidate: Candidate, number: int) -> Trial:
        if number == 1:
            raise BudgetSpent
        return model.again(candidate, number)

    space = whole_space(model)
    assert confirm(space.candidate(space.present), [], measure) is None


def test_equal_candidates_are_measured_once() -> None:
    model = SimulatedModel(noise=0.0)
    seen: list[str] = []

    def measure(candidate: Candidate, floor: float) -> Trial:
        seen.append(candidate.key)
        return model.trial(candidate, floor)

    space = space_of(PRESENT, objective_ms=100.0, cores=4, workers=True)
    search(space, space.present, measure)

    assert len(seen) == len(set(seen))


def test_no_interval_of_a_rate_is_below_zero() -> None:
    missed = Trial(candidate=Candidate(label="", options={}), rate=0.0, low=0.0, high=20.0)
    met = Trial(candidate=Candidate(label="", options={}), rate=30.0, low=30.0, high=31.0)

    low, high = interval([missed, missed, met])

    assert low == 0.0
    assert high > 10.0
