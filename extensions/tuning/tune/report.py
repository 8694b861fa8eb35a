"""The document of a tuning, and the same as Markdown."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from extensions.tuning.bench.measurement import Objective
from extensions.tuning.machine import busy_warning
from extensions.tuning.pages.markdown import table
from extensions.tuning.tune.calibration import LeftOut
from extensions.tuning.tune.confirmation import Confirmation, Confirmed
from extensions.tuning.tune.search import Trial, rate_text
from extensions.tuning.tune.space import Candidate

FORMAT: Final = 1


class TuneReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run of `headrace tune`.

    Attributes:
        where: the URL of the server, or "private".
        input: the inputs in words.
        seconds: how long the trials took.
        complete: the search ended by itself, and not by the budget.
        trials: the trials of the search; the first is of the present options.
        left_out: what no trial measured, with reasons.
        confirmation: the best candidates and the present options in turns; None if the budget ended
            before.
        options: the options to change, if one candidate is better.
        environ: the workers' variables to change.
        patch: a unified diff of the models file; "" if nothing changes.
        revert: the command that takes the change back, if it was applied.
        environment: the load of the machine at the start, as `load_facts` has it.
        load_after: the load average at the end.
    """

    model: str
    objective: Objective
    where: str
    input: str
    budget_s: float
    seconds: float
    points: int
    complete: bool
    trials: list[Trial]
    left_out: list[LeftOut] = []
    confirmation: Confirmation | None = None
    options: dict[str, Any] = {}
    environ: dict[str, str] = {}
    patch: str = ""
    revert: str = ""
    environment: dict[str, Any] = {}
    load_after: float | None = None
    format: int = FORMAT

    @property
    def better(self) -> Confirmed | None:
        """Return the better candidate, if there is one."""
        return self.confirmation.better if self.confirmation is not None else None

    @property
    def verdict(self) -> str:
        """Return the result in a sentence."""
        if self.confirmation is None:
            best = max(self.trials, key=lambda trial: trial.rate)
            return (
                "not confirmed: the budget ended before the best candidates were measured again; "
                f"the best so far is {best.candidate.label or 'the present options'} with "
                f"{rate_text(best)}, and the present options have {rate_text(self.trials[0])}; "
                "use --resume with a longer --budget"
            )
        present, better = self.confirmation.present, self.better
        if better is None and not present.rate:
            return "no combination that was measured meets the objective at any rate"
        if better is None:
            return f"no better than what you have: {_rate(present)}"
        found = f"{better.candidate.label}: {_rate(better)}"
        if not present.rate:
            return f"{found}; the present options met the objective at no rate that was tried"
        gain = f"{better.rate / present.rate:.2f} times as much"
        return f"{found}, {gain} as {_rate(present)} before"


def _rate(one: Confirmed) -> str:
    return f"{one.rate:.1f}/s ({one.low:.1f} to {one.high:.1f})"


def markdown(report: TuneReport) -> str:
    """Return the report as Markdown."""
    objective = report.objective
    complete = "" if report.complete else "; the budget ended the search"
    parts = [
        f"# headrace tune {report.model}",
        *filter(None, [f"**{busy}**" if (busy := busy_warning(report.environment)) else ""]),
        f"Objective: p{objective.percentile:g} within {objective.latency_ms:g} ms. "
        f"Input: {report.input}. {len(report.trials)} of {report.points:,} points were measured in "
        f"{report.seconds / 60:.1f} minutes{complete}. "
        f"Load average: {_load(report.environment.get('load_before'))} before, "
        f"{_load(report.load_after)} after.",
        f"**{report.verdict}**",
    ]
    if report.confirmation is not None:
        parts.append("## Confirmation")
        parts.append(f"Rounds in turns (A/B, B/A): {report.confirmation.rounds}.")
        parts.append(_confirmed(report.confirmation))
    if report.better is not None:
        parts += _change(report)
    parts += ["## Trials", _trials(report.trials)]
    if report.left_out:
        parts.append("## Left out without a trial")
        parts.append(table(("what", "reason"), [(one.what, one.reason) for one in report.left_out]))
    return "\n\n".join(parts) + "\n"


def _load(average: float | None) -> str:
    return "unknown" if average is None else f"{average:.1f}"


def _change(report: TuneReport) -> list[str]:
    parts = ["## Change"]
    if report.patch:
        parts.append(f"```diff\n{report.patch.rstrip()}\n```")
    if report.environ:
        values = " ".join(f"{key}={value}" for key, value in report.environ.items())
        parts.append(f"Start the workers with `{values}`.")
    if report.revert:
        parts.append(f"It is applied. To take it back: `{report.revert}`")
    return parts


def _confirmed(confirmation: Confirmation) -> str:
    present = confirmation.present
    rows = [_row("present options", present, present)]
    rows += [_row(one.candidate.label, one, present) for one in confirmation.others]
    columns = ("options", ">peak, requests/s", ">interval", ">ratio", ">p99 at the peak")
    return table(columns, rows)


def _row(name: str, one: Confirmed, present: Confirmed) -> tuple[str, ...]:
    ratio = f"{one.rate / present.rate:.2f}" if present.rate else ""
    p99_ms = max((trial.p99_ms for trial in one.trials), default=0.0)
    return (name, f"{one.rate:.1f}", f"{one.low:.1f} to {one.high:.1f}", ratio, f"{p99_ms:.0f} ms")


def _trials(trials: list[Trial]) -> str:
    rows = []
    for trial in trials:
        above = f"below {trial.high:.1f}" if trial.high is not None else "no rate was too high"
        result = trial.error or ("ended early" if trial.cut else above)
        # The first one is of the present options.
        label = labelled(trial.candidate, present=trial is trials[0])
        rows.append((label, rate_text(trial), result, f"{trial.seconds:.0f} s"))
    return table(("options", ">met the objective", "limit", ">time"), rows)


def labelled(candidate: Candidate, *, present: bool) -> str:
    """Return the label of a candidate, with a mark if it has the present options."""
    return ": ".join(filter(None, ("present options" if present else "", candidate.label)))
