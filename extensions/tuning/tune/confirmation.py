"""Measures the best candidates and the present options in turns, and decides if one is better."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Final

import msgspec

from extensions.tuning.tune.search import BudgetSpent, Trial
from extensions.tuning.tune.space import Candidate

#: Fewer turns give intervals that are too wide to decide anything.
ROUNDS_MIN: Final = 2
ROUNDS: Final = 4
_RESAMPLES: Final = 1000
_CONFIDENCE: Final = 0.95

#: Measures a candidate in one round.
MeasureAgain = Callable[[Candidate, int], Trial]


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate, measured several times.

    Attributes:
        rate: the mean of its peak rates, in requests a second.
        low, high: the interval of the mean, by bootstrap.
    """

    candidate: Candidate
    rate: float
    low: float
    high: float
    trials: list[Trial]


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of all rounds.

    Attributes:
        others: the other candidates, the best one first.
        rounds: the rounds that were complete.
    """

    present: Confirmed
    others: list[Confirmed]
    rounds: int

    @property
    def better(self) -> Confirmed | None:
        """Return the best candidate if its whole interval is above that of the present options."""
        best = self.others[0] if self.others else None
        return best if best is not None and best.low > self.present.high else None


def confirm(
    present: Candidate,
    others: Sequence[Candidate],
    measure: MeasureAgain,
    rounds: int = ROUNDS,
) -> Confirmation | None:
    """Measure all in turns: A/B, then B/A, and so on, so that a drift of the machine cancels out.

    It is None if the budget ended before ROUNDS_MIN rounds.
    """
    candidates = [present, *others]
    found: list[list[Trial]] = [[] for _ in candidates]
    complete = 0
    try:
        for number in range(rounds):
            order = range(len(candidates))
            row: dict[int, Trial] = {}
            for at in order if number % 2 == 0 else reversed(order):
                row[at] = measure(candidates[at], number)
            for at, trial in row.items():
                found[at].append(trial)
            complete += 1
    except BudgetSpent:
        if complete < ROUNDS_MIN:
            return None
    # Each of several candidates may look better by chance: they share the allowed error.
    confidence = 1 - (1 - _CONFIDENCE) / max(1, len(others))
    results = [
        _confirmed(candidate, trials, confidence)
        for candidate, trials in zip(candidates, found, strict=True)
    ]
    return Confirmation(
        present=results[0],
        others=sorted(results[1:], key=lambda one: -one.rate),
        rounds=complete,
    )


def _confirmed(candidate: Candidate, trials: list[Trial], confidence: float) -> Confirmed:
    low, high = interval(trials, confidence)
    rate = fmean(trial.rate for trial in trials)
    return Confirmed(candidate=candidate, rate=rate, low=low, high=high, trials=trials)


def interval(trials: Sequence[Trial], confidence: float = _CONFIDENCE) -> tuple[float, float]:
    """Return the interval of the mean peak rate, by bootstrap.

    A peak is known only to be between the highest rate that met the objective and the lowest that
    did not. So each draw is from between them. Few values are too alike, which is corrected. No
    rate is below 0.
    """
    # The same trials give the same interval.
    chance = random.Random(len(trials))  # noqa: S311 - not for secrets
    count = len(trials)
    centre = fmean(trial.rate for trial in trials)
    widen = (count / (count - 1)) ** 0.5 if count > 1 else 1.0
    ends = [(trial.low, (trial.high or trial.rate) - trial.low) for trial in trials]
    means = [
        sum(low + width * chance.random() for low, width in chance.choices(ends, k=count)) / count
        for _ in range(_RESAMPLES)
    ]
    middle = fmean(means)
    means.sort()
    cut = round((1 - confidence) / 2 * (_RESAMPLES - 1))
    low, high = means[cut], means[-1 - cut]
    return max(0.0, centre + (low - middle) * widen), centre + (high - middle) * widen
