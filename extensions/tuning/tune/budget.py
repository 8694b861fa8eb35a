"""What the budget of a tuning has time for, before anything is measured."""

from __future__ import annotations

from typing import Final

from extensions.tuning.tune.confirmation import ROUNDS_MIN
from headrace.errors import ConfigError

#: A usual trial: the start of a server, and about six loads of five seconds.
TRIAL_S: Final = 40.0
#: Fewer trials compare nothing: one is of the present options.
TRIALS_MIN: Final = 2
#: The trials of the shortest tuning that confirms its result: two of the search, and the rounds of
#: two candidates.
CONFIRMED: Final = TRIALS_MIN + 2 * ROUNDS_MIN
#: The calibration has what the shortest confirmed tuning leaves, but at least and at most these
#: parts of the budget.
_CALIBRATION_MIN: Final = 0.2
_CALIBRATION_MAX: Final = 0.4


def calibration_s(budget_s: float) -> float:
    """Return how long the calibration may take."""
    rest_s = budget_s - CONFIRMED * TRIAL_S
    return min(max(rest_s, _CALIBRATION_MIN * budget_s), _CALIBRATION_MAX * budget_s)


def usual_trials(budget_s: float, *, calibrates: bool) -> int:
    """Return for how many usual trials a budget has time."""
    left_s = budget_s - (calibration_s(budget_s) if calibrates else 0.0)
    return int(left_s / TRIAL_S)


def outlook(budget_s: float, *, calibrates: bool) -> str:
    """Return in words what fits into a budget.

    Raises:
        ConfigError: fewer than two trials do.
    """
    trials = usual_trials(budget_s, calibrates=calibrates)
    if trials < TRIALS_MIN:
        raise ConfigError(
            f"--budget: {budget_s:g} s have time for {trials} trial{'' if trials == 1 else 's'} of "
            f"about {TRIAL_S:g} s, and a comparison needs {TRIALS_MIN}",
            hint="give 2m or more; 5m or more also confirm the result",
        )
    text = f"the budget has time for about {trials} trials of {TRIAL_S:g} s"
    if calibrates:
        text = f"the calibration takes up to {calibration_s(budget_s):.0f} s; then {text}"
    confirming = min(trials - TRIALS_MIN, 2 * ROUNDS_MIN)
    if trials < CONFIRMED:
        return f"{text}, and a confirmed result needs {CONFIRMED}: 5m or more, or --resume"
    return f"{text}: {trials - confirming} of the search, {confirming} or more of the confirmation"
