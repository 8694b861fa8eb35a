"""A trial: the peak rate of one candidate on a deployment, by `extensions.tuning.bench`.

A trial ends early when its load can no longer meet the objective, or when its backlog grows. It
also ends early when its first load, at the best rate so far, misses the objective.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from extensions.tuning.bench.load.targets import Target
from extensions.tuning.bench.measure import LoadOptions, find_peak
from extensions.tuning.bench.measurement import Load, Measurement, Objective
from extensions.tuning.bench.serving import NotServed
from extensions.tuning.tune.confirmation import ROUNDS_MIN
from extensions.tuning.tune.deployment import Deployment
from extensions.tuning.tune.journal import Journal, Stage
from extensions.tuning.tune.search import BudgetSpent, Trial
from extensions.tuning.tune.space import Candidate
from headrace.errors import ConfigError, HeadraceError, ServerUnreachable

#: A server that ended during a trial is started again so often.
_TRIES: Final = 2
#: The shortest load; the objective may need a longer one.
_LOAD_S: Final = 5.0
#: A search only compares: with less confidence a load needs half of the requests.
_SEARCH_CONFIDENCE: Final = 0.9
#: How fast the rate grows until it is too high, and how close the limits of the peak are then. The
#: three are for the first trial, others in the search, and a trial that is repeated.
_FIRST: Final = (2.0, 1.1)
_OTHERS: Final = (1.4, 1.1)
_AGAIN: Final = (1.1, 1.05)
#: If the calibration has a rate for the candidate, the first load has this part of it: the way to
#: the server and back takes time too.
_EXPECTED: Final = 0.7
#: With time for fewer trials, a repeated one takes fewer loads.
_FEW: Final = 8
_AGAIN_FEW: Final = (1.1, 1.1)
#: A candidate that needs such a part of the rest of the budget for one load has no peak worth it.
_LONGEST: Final = 0.2
#: Of a load that was too high, results come at about the rate that the server can do.
_MARGIN: Final = 1.05

#: A repeated trial knows its rate, so it takes this part of the time of the first one.
_REPEATED: Final = 0.75

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

#: Finds the peak of a target: from a first rate, and up to the end of the search if the rate
#: `at_least` misses the objective.
FindPeak = Callable[..., Measurement]


class Trials:
    """The trials of one tuning, in its journal.

    Args:
        deadline: the end of the budget, of `time.monotonic`.
        on_trial: called with each trial and the name of its stage.

    Attributes:
        reserved: how many trials the search leaves to the confirmation.
        searching: the search measures what the journal does not have.
        expected: returns the rate of a candidate by the calibration; 0 if it is unknown.
    """

    def __init__(
        self,
        deployment: Deployment,
        target_of: Callable[[str], Target],
        objective: Objective,
        journal: Journal,
        deadline: float,
        *,
        on_trial: Callable[[Trial, str], None] = lambda *_: None,
        on_load: Callable[[Load], None] = lambda _: None,
        find: FindPeak = find_peak,
    ) -> None:
        self._deployment = deployment
        self._target_of = target_of
        self._objective = objective
        self._journal = journal
        self._deadline = deadline
        self._on_trial = on_trial
        self._on_load = on_load
        self._find = find
        self._known: dict[str, Trial] = {}
        self._usual_s = 0.0
        self._again: tuple[float, float] | None = None
        self._began = time.monotonic()
        self.reserved = 0
        self.searching = True
        self.expected: Callable[[Candidate], float] = lambda _: 0.0

    def search(self, candidate: Candidate, floor: float) -> Trial:
        """Measure a candidate for the search.

        Raises:
            BudgetSpent: the budget has no time for it, besides that for the confirmation.
        """
        trial = self._journal.recorded(
            "search", candidate, 0, lambda: self._measure("search", candidate, floor)
        )
        return self._noted(trial, "search")

    def again(self, candidate: Candidate, number: int) -> Trial:
        """Measure a candidate in a round of the confirmation.

        Raises:
            BudgetSpent: the budget has no time for it.
        """
        trial = self._journal.recorded(
            "confirm", candidate, number, lambda: self._measure("confirm", candidate, 0.0)
        )
        return self._noted(trial, f"round {number + 1}")

    def _noted(self, trial: Trial, stage: str) -> Trial:
        if stage == "search":
            self._known[trial.candidate.key] = trial
        if not trial.cut and not trial.error:
            self._usual_s = (
                self._usual_s * 0.5 + trial.seconds * 0.5 if self._usual_s else trial.seconds
            )
        self._on_trial(trial, stage)
        return trial

    @property
    def left(self) -> int:
        """Return how many usual trials the budget still has time for."""
        left_s = self._deadline - time.monotonic()
        return max(0, int(left_s / self._usual_s)) if self._usual_s else 0

    def has_time_for(self, count: int) -> bool:
        """Return whether the budget still has time for so many usual trials."""
        return time.monotonic() + count * self._usual_s <= self._deadline

    def _measure(self, stage: Stage, candidate: Candidate, floor: float) -> Trial:
        began, search = time.monotonic(), stage == "search"
        needed_s = self._searching_s() if search else _REPEATED * self._usual_s
        if began + needed_s > self._deadline or (search and not self.searching):
            raise BudgetSpent
        trial = self._tried(candidate, floor)
        return msgspec.structs.replace(trial, seconds=round(time.monotonic() - began, 1))

    def _searching_s(self) -> float:
        """Return how long a further trial of the search and the confirmation after it take.

        Half of a short budget is for the search, but the shortest confirmation goes first, unless
        there was one.
        """
        half_s = (self._deadline - self._began) / 2
        if len(self._known) < TRIALS_MIN:
            return min(self.reserved * self._usual_s, half_s)
        if not self._journal.confirmation:
            half_s = max(half_s, 2 * ROUNDS_MIN * self._usual_s)
        return self._usual_s + min(self.reserved * self._usual_s, half_s)

    def _tried(self, candidate: Candidate, floor: float) -> Trial:
        problem: HeadraceError | None = None
        for _ in range(_TRIES):
            try:
                return self._peak(candidate, floor)
            except ServerUnreachable as error:
                # Only its owner can start a server that ran already; --resume goes on then.
                if not self._deployment.private:
                    raise
                problem = error
            except HeadraceError as error:
                problem = error
                break
        # Without the present options there is nothing to compare with.
        if not self._known:
            if problem is None:
                raise RuntimeError("a trial neither ended nor failed")
            raise unserved_present(problem) if isinstance(problem, NotServed) else problem
        return Trial(candidate=candidate, rate=0.0, low=0.0, error=str(problem))

    def _peak(self, candidate: Candidate, floor: float) -> Trial:
        self._deployment.use(candidate)
        known, objective = self._known.get(candidate.key), self._objective
        if known is not None:
            # The same for all, as a rougher search finds a lower peak.
            self._again = self._again or (_AGAIN if self.left >= _FEW else _AGAIN_FEW)
            growth, precision = self._again
            start = known.rate or known.high or 0.0
        else:
            expected = _EXPECTED * self.expected(candidate)
            growth, precision = _OTHERS if floor or expected else _FIRST
            start = max(floor * growth, expected)
            lower = min(objective.confidence, _SEARCH_CONFIDENCE)
            objective = msgspec.structs.replace(objective, confidence=lower)
        options = LoadOptions(
            duration_s=_LOAD_S,
            stop_early=True,
            longest_s=_LONGEST * max(0.0, self._deadline - time.monotonic()),
            on_begin=self._fits,
            on_load=self._in_budget,
        )
        try:
            measured = self._find(
                self._target_of(self._deployment.url), objective, options, start=start,
                at_least=floor, growth=growth, precision=precision,
                name=candidate.label or "present options",
            )  # fmt: skip
        except (BudgetSpent, ServerUnreachable):
            raise
        except HeadraceError:
            self._deployment.check()  # a server that has ended explains all other errors
            raise
        self._deployment.check()
        trial = _trial(candidate, measured, floor)
        if known is None:
            return trial
        return msgspec.structs.replace(trial, measurement=self._kept(candidate, measured))

    def _kept(self, candidate: Candidate, measured: Measurement) -> str:
        """Write all figures of a confirmation; return the name of the file in the folder."""
        folder = self._journal.path.parent / "measurements"
        folder.mkdir(exist_ok=True)
        place = list(self._known).index(candidate.key) + 1
        name = f"{place}-{sum(1 for _ in folder.glob(f'{place}-*.json')) + 1}.json"
        (folder / name).write_bytes(msgspec.json.encode(measured))
        return f"measurements/{name}"

    def _fits(self, length_s: float) -> None:
        # At a low rate a load takes minutes.
        if time.monotonic() + length_s > self._deadline:
            raise BudgetSpent

    def _in_budget(self, load: Load) -> None:
        self._on_load(load)
        if time.monotonic() > self._deadline:
            raise BudgetSpent


def _trial(candidate: Candidate, measured: Measurement, floor: float) -> Trial:
    peak = measured.peak
    met = [load for load in measured.loads if load.verdict is not None and load.verdict.met]
    rate = peak.rate if peak is not None else 0.0
    high = peak.high if peak is not None else None
    if not rate and high is not None and measured.loads:
        high = min(high, measured.loads[-1].rate * _MARGIN)
    return Trial(
        candidate=candidate,
        rate=rate,
        low=rate,
        high=high,
        cut=f"less than {floor:.1f}/s" if rate < floor else "",
        loads=len(measured.loads),
        p99_ms=met[-1].latency.p99 if met else 0.0,
    )


def unserved_present(error: NotServed) -> ConfigError:
    """Return the error for a model that cannot be served with its present options."""
    return ConfigError(
        f"the model cannot be served as it is: {error.message}",
        hint="start it with `headrace up`, and read its log",
    )


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
