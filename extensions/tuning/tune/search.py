"""Climbs from a point to better ones, and sees a trial only as a function of a candidate.

Hill climbing over coordinates: below about 60 points it needs fewer trials than a model of the
surface would need to be fitted. It draws nothing at random, so the same trials give the same path.
For the trials that a journal has, the journal can take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final

import msgspec

from extensions.tuning.tune.space import VARIANT, Candidate, Point, Space

#: A difference that no user would change an option for; noise would lead the search on.
_WORTH: Final = 1.01
#: What is below this part of the best rate is not tried again when other options have changed.
_HOPELESS: Final = 0.75
#: What is above this part of the best rate may be a dip.
_CLOSE: Final = 0.8


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial found: the highest rate at which the objective is met.

    Attributes:
        rate: requests a second; 0 if no rate met the objective.
        low, high: the highest rate that met the objective, and the lowest that did not. None if
            every rate met it.
        cut: why it was ended early; "" if it was not.
        error: why it could not be measured; "" if it was.
        seconds: how long it took, with the start of the server.
        p99_ms: the p99 at the highest rate that met the objective; 0 if it is not known.
        measurement: the file with all its figures, in the folder of the tuning; "" for none.
    """

    candidate: Candidate
    rate: float
    low: float
    high: float | None = None
    cut: str = ""
    error: str = ""
    seconds: float = 0.0
    loads: int = 0
    p99_ms: float = 0.0
    measurement: str = ""


def rate_text(trial: Trial) -> str:
    """Return the rate of a trial in words: one that was ended early, or met no rate, has none."""
    if trial.error:
        return "not measured"
    if not trial.rate and not trial.cut and trial.high is not None:
        return f"less than {trial.high:.1f}/s"
    return trial.cut or f"{trial.rate:.1f}/s"


#: Measures a candidate. It may end early once the rate is surely below the second argument.
Measure = Callable[[Candidate, float], Trial]


class BudgetSpent(Exception):
    """The budget has no time for another trial."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found.

    Attributes:
        trials: all trials in their order; the first is of the present options.
        complete: no neighbour of the best point is left to be measured.
    """

    trials: list[Trial]
    complete: bool

    @property
    def present(self) -> Trial:
        """Return the trial of the present options."""
        return self.trials[0]

    def best(self, count: int) -> list[Trial]:
        """Return the best candidates besides the present one that may be better than it."""
        present = self.present
        others = [
            trial
            for trial in self.trials[1:]
            if trial.rate > 0
            and not (trial.cut or trial.error)
            and (trial.high or trial.rate) >= present.low
        ]
        return sorted(others, key=lambda trial: -trial.rate)[:count]


class _Climb:
    """One search; `trials` has what was measured so far."""

    def __init__(self, space: Space, measure: Measure) -> None:
        self._space = space
        self._measure = measure
        self._seen: dict[str, Trial] = {}
        # The choices on each axis that lost so clearly that no other axis can make up for it.
        self._lost: list[set[int]] = [set() for _ in space.axes]
        self._at: Point = space.present
        self._best: Trial
        self.trials: list[Trial] = []

    def trial(self, point: Point, floor: float) -> Trial:
        """Return the trial of a point; an equal candidate is measured once."""
        candidate = self._space.candidate(point)
        if candidate.key not in self._seen:
            found = self._measure(candidate, floor)
            self._seen[candidate.key] = found
            self.trials.append(found)
        return self._seen[candidate.key]

    def climb(self, point: Point) -> None:
        """Move along each axis in turn, until no neighbour is better."""
        self._at, self._best = point, self.trial(point, 0.0)
        moved = True
        while moved:
            moved = False
            for axis in range(len(self._space.axes)):
                moved |= self._along(axis)
            if not moved:
                moved = any(self._better(point) for point in self._diagonals())

    def _along(self, axis: int) -> bool:
        """Try the neighbours along an axis; return whether one was better."""
        begun = self._at
        lost = self._lost[axis]
        for direction in self._space.directions(begun, axis):
            close = True
            for neighbour in direction:
                if neighbour[axis] in lost:
                    break
                before = self._best.rate
                if self._better(neighbour):
                    close = True
                    continue
                found = self.trial(neighbour, 0.0)
                # What one choice is refused for, such as a handler whose verbs run in turn, the
                # other choices are too. Each variant has reasons of its own.
                if found.error and self._space.axes[axis].name != VARIANT:
                    lost.update(range(len(self._space.axes[axis].choices)))
                    lost.discard(self._at[axis])
                    return self._at != begun
                reached = max(found.rate, found.high or 0.0)
                if reached < _HOPELESS * before:
                    lost.add(neighbour[axis])
                # A small loss may be a dip on the way to something better: look once behind it.
                if not close or reached < _CLOSE * before:
                    break
                close = False
            if self._space.axes[axis].ordered and self._at != begun:
                break  # the other way leads back
        return self._at != begun

    def _better(self, point: Point) -> bool:
        found = self.trial(point, self._best.low)
        if found.rate <= self._best.rate * _WORTH:
            return False
        self._at, self._best = point, found
        return True

    def _diagonals(self) -> Iterator[Point]:
        """Yield the points a step away on two axes with an order, unless one step lost clearly."""
        axes = self._space.axes
        ordered = [at for at, axis in enumerate(axes) if axis.ordered]
        steps = [(axis, step) for axis in ordered for step in (1, -1)]
        for (one, step), (other, other_step) in combinations(steps, 2):
            moved = list(self._at)
            moved[one] += step
            moved[other] += other_step
            inside = all(0 <= moved[at] < len(axes[at].choices) for at in (one, other))
            if (
                one != other
                and inside
                and moved[one] not in self._lost[one]
                and moved[other] not in self._lost[other]
            ):
                yield tuple(moved)


def search(space: Space, start: Point, measure: Measure) -> Found:
    """Measure the present options, then climb from `start`, or from the present options if better.

    Raises:
        BudgetSpent: it ended before the present options were measured.
    """
    climb = _Climb(space, measure)
    present = climb.trial(space.present, 0.0)
    try:
        first = climb.trial(start, present.low)
        climb.climb(start if first.rate >= present.rate else space.present)
    except BudgetSpent:
        return Found(trials=climb.trials, complete=False)
    return Found(trials=climb.trials, complete=True)
