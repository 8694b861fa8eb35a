"""One tuning from the calibration to the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from extensions.tuning.bench.load.targets import Target
from extensions.tuning.bench.measure import find_peak
from extensions.tuning.bench.measurement import Load, Measurement, Objective, read_measurement
from extensions.tuning.bench.report import html
from extensions.tuning.bench.serving import NotServed
from extensions.tuning.machine import busy_warning, load_average, load_facts
from extensions.tuning.optimize.report import Comparison
from extensions.tuning.tune.calibration import Calibration, calibrated, expected_rate, start_of
from extensions.tuning.tune.confirmation import ROUNDS, ROUNDS_MIN, Confirmation, confirm
from extensions.tuning.tune.deployment import Deployment
from extensions.tuning.tune.journal import NAME, Header, Journal
from extensions.tuning.tune.models_patch import patch, snippet
from extensions.tuning.tune.report import TuneReport, markdown
from extensions.tuning.tune.search import BudgetSpent, Found, Trial, search
from extensions.tuning.tune.space import Candidate, Point, Space, space_of
from extensions.tuning.tune.trials import FindPeak, Trials, calibration_s, outlook, unserved_present
from headrace.client.models import Model
from headrace.errors import ConfigError

#: How many of the best candidates are measured again, in turns with the present options.
FINALISTS: Final = 3
#: The options of a model that an axis may change.
OPTIONS: Final = (
    "optimize", "max_batch_size", "allowed_batch_sizes", "max_batch_delay_ms", "replicas",
    "min_replicas", "max_replicas", "total_replicas", "preprocess_threads", "preprocess_processes",
)  # fmt: skip
#: Measures the variants of the model without a server, within a number of seconds. It returns None
#: if it cannot.
Compare = Callable[[float], Comparison | None]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to tune.

    Attributes:
        budget_s: how long calibration and trials may take.
        input: the inputs in words.
        where: the URL of the server, or "private" for servers that the trials start.
        models_file: the models file that the patch changes; None if it is not on this machine.
        calibrates: whether a calibration is measured; a kept one, or a server that runs, needs
            none.
    """

    model: str
    objective: Objective
    budget_s: float
    folder: Path
    present: dict[str, Any]
    input: str
    where: str
    models_file: Path | None = None
    resume: bool = False
    calibrates: bool = False


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that are called while a tuning runs; with each trial comes its stage."""

    on_text: Callable[[str], None]
    on_trial: Callable[[Trial, str], None]
    on_load: Callable[[Load], None] = lambda _: None


def tune(
    plan: Plan,
    deployment: Deployment,
    target_of: Callable[[str], Target],
    compare: Compare,
    progress: Progress,
    find: FindPeak = find_peak,
) -> TuneReport:
    """Search, confirm, and write the report into the folder.

    Args:
        deployment: where the trials run; it is closed in any case.

    Raises:
        ConfigError: the budget is too short for two trials, the journal is of another tuning, or
            the model cannot be served with its present options.
        ServerUnreachable: a server that this tuning did not start has ended; `resume` continues.
    """
    began, machine = time.monotonic(), load_facts()
    if busy := busy_warning(machine):
        progress.on_text(busy)
    journal = Journal(plan.folder / NAME)
    try:
        journal.begin(_header(plan), resume=plan.resume)
        if not plan.resume:
            progress.on_text(outlook(plan.budget_s, calibrates=plan.calibrates))
        deadline = began + plan.budget_s - journal.spent_s
        searching = not _is_unfinished(journal)
        left_s = max(0.0, deadline - began) if searching else 0.0
        calibration = _calibration(plan, compare, progress, left_s)
        space = _space(plan, _served(deployment, progress), calibration)
        trials = Trials(
            deployment, target_of, plan.objective, journal, deadline,
            on_trial=progress.on_trial, on_load=progress.on_load, find=find,
        )  # fmt: skip
        trials.reserved, trials.searching = (FINALISTS + 1) * ROUNDS_MIN, searching
        if calibration is not None:
            trials.expected = partial(expected_rate, calibration, plan.objective.latency_ms)
        start = start_of(space, calibration) if calibration is not None else space.present
        found, confirmation = _measured(plan, space, start, journal, trials, progress)
    finally:
        journal.close()
        deployment.close()
    report = TuneReport(
        model=plan.model,
        objective=plan.objective,
        where=plan.where,
        input=plan.input,
        budget_s=plan.budget_s,
        seconds=journal.spent_s,
        points=space.size,
        complete=found.complete,
        trials=found.trials,
        left_out=calibration.left_out if calibration is not None else [],
        confirmation=confirmation,
        environment=machine,
        load_after=load_average(),
    )
    report = _with_change(plan, report)
    write(plan.folder, report)
    return report


def _served(deployment: Deployment, progress: Progress) -> Model:
    progress.on_text("starts the model with its present options")
    try:
        return deployment.use(Candidate(label="", options={}))
    except NotServed as error:
        raise unserved_present(error) from error


def _measured(
    plan: Plan,
    space: Space,
    start: Point,
    journal: Journal,
    trials: Trials,
    progress: Progress,
) -> tuple[Found, Confirmation | None]:
    """Search, then measure the best candidates and the present options in turns."""
    if trials.searching:
        count = f"{space.size:,} combinations"
        progress.on_text(f"searches {count}, and measures those that may be better")
    try:
        found = search(space, start, trials.search)
    except BudgetSpent:
        raise ConfigError(
            f"the budget of {plan.budget_s:g} s ended before one trial of {plan.model} did",
            hint="give a longer --budget, as a trial takes a minute or two",
        ) from None
    others = _finalists(journal, found, trials)
    if len(others) > 0:
        verb = "measures" if trials.searching else "goes on to measure"
        best = "best one" if len(others) == 1 else f"best {len(others)}"
        progress.on_text(f"{verb} the {best} and the present options in turns")
    return found, confirm(found.present.candidate, others, trials.again)


def _is_unfinished(journal: Journal) -> bool:
    """Return whether the journal ends with a confirmation that lacks rounds."""
    first = sum(entry.round == 0 for entry in journal.confirmation)
    return journal.confirms and len(journal.confirmation) < first * ROUNDS


def _finalists(journal: Journal, found: Found, trials: Trials) -> list[Candidate]:
    """Return the candidates of the confirmation, without the present options.

    These are the candidates of the last confirmation, unless a search has run after it.
    """
    # A short budget has fewer candidates, so that each is measured often enough.
    count = max(1, min(FINALISTS, trials.left // ROUNDS_MIN - 1))
    best = [trial.candidate for trial in found.best(count)]
    rounds = {entry.round for entry in journal.confirmation}
    if rounds <= {0}:
        return best
    _, *earlier = (entry.trial.candidate for entry in journal.confirmation if entry.round == 0)
    same = {candidate.key for candidate in best} == {candidate.key for candidate in earlier}
    # Without time for the new candidates, the rounds of the earlier ones remain the result.
    if journal.confirms or same or not trials.has_time_for((len(best) + 1) * ROUNDS_MIN):
        return earlier
    journal.confirmation = []
    return best


def write(folder: Path, report: TuneReport) -> None:
    """Write the report, and the patch if there is one.

    Raises:
        ConfigError: a file cannot be written.
    """
    files = {"report.json": msgspec.json.format(msgspec.json.encode(report)).decode()}
    files["report.md"] = markdown(report)
    if report.patch:
        files["models.patch"] = report.patch
    if measurements := _measurements(folder, report):
        files["report.html"] = html(measurements)
    for name, text in files.items():
        try:
            (folder / name).write_text(text)
        except OSError as error:
            raise ConfigError(f"{folder / name}: cannot be written: {error.strerror}") from None


def _measurements(folder: Path, report: TuneReport) -> list[Measurement]:
    """Return the last measurements of the present options and of the best other ones."""
    if report.confirmation is None:
        return []
    shown = [report.confirmation.present, *report.confirmation.others[:1]]
    files = [confirmed.trials[-1].measurement for confirmed in shown]
    measurements = [read_measurement(folder / name) for name in files if name]
    # Before each trial the machine has the load of the trial before it.
    return [
        msgspec.structs.replace(
            measurement, environment={**measurement.environment, **report.environment}
        )
        for measurement in measurements
    ]


def _header(plan: Plan) -> Header:
    objective = plan.objective
    return Header(
        model=plan.model,
        objective=f"p{objective.percentile:g}={objective.latency_ms:g}ms",
        where=plan.where,
        input=plan.input,
        present=plan.present,
    )


def _calibration(
    plan: Plan, compare: Compare, progress: Progress, left_s: float
) -> Calibration | None:
    """Return the calibration of an earlier process, or measure one.

    One that was cut off is measured again if time is left. Its builds are used again.
    """
    file = plan.folder / "calibration.json"
    earlier: Comparison | None = None
    if plan.resume:
        with suppress(OSError, msgspec.MsgspecError):
            earlier = msgspec.json.decode(file.read_bytes(), type=Comparison)
    comparison = earlier
    if left_s > 0 and (comparison is None or comparison.cut):
        comparison = compare(calibration_s(left_s)) or earlier
    if comparison is None:
        return None
    if comparison is not earlier:
        try:
            file.write_bytes(msgspec.json.encode(comparison))
        except OSError as error:
            raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
    calibration = calibrated(comparison, plan.objective.latency_ms)
    for part in calibration.left_out:
        progress.on_text(f"leaves out {part.what}: {part.reason}")
    if not calibration.variants:
        raise ConfigError(
            f"no variant of {plan.model} can meet {plan.objective.latency_ms:g} ms: the smallest "
            "batch takes longer",
            hint="give a longer --slo, or a smaller model",
        )
    return calibration


def _space(plan: Plan, model: Model, calibration: Calibration | None) -> Space:
    worker = next(iter(model.workers or []), {})
    replicas = plan.present.get("replicas")
    processes = replicas if isinstance(replicas, int) else int(worker.get("replicas") or 1)
    gpu = str(worker.get("device") or "cpu") != "cpu"
    # A worker shares its cores among its model processes.
    cores = max(1, int(worker.get("threads") or 1) * max(1, processes))
    limits: dict[str, Any] = {}
    if calibration is not None:
        limits = {
            "variants": [variant.optimize for variant in calibration.variants],
            "batch_max": calibration.batch_max,
            "preprocess_share": calibration.preprocess_share,
        }
    return space_of(
        plan.present,
        objective_ms=plan.objective.latency_ms,
        cores=cores,
        gpu=gpu,
        workers=plan.where == "private",
        **limits,
    )


def _with_change(plan: Plan, report: TuneReport) -> TuneReport:
    """Return the report with the options to change, if a candidate is better."""
    if report.better is None:
        return report
    chosen, present = report.better.candidate, report.trials[0].candidate
    options = {
        key: value for key, value in chosen.options.items() if present.options.get(key) != value
    }
    text = snippet(plan.model, options)
    if plan.models_file is not None:
        with suppress(ConfigError):  # of a file with aliases; a person can use the snippet
            text = patch(plan.models_file, plan.model, options)
    return msgspec.structs.replace(report, options=options, environ=chosen.environ, patch=text)
