"""`headrace tune`: finds the options with which a model serves the highest rate in time."""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from extensions.tuning.cli.arguments import budget_seconds, own_model
from headrace.cli.shared import options, output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.interrupts import InterruptHandler, Terminated, stop_reason
from headrace.cli.shared.options import client_of, flag, option
from headrace.errors import ConfigError, HeadraceError, InvalidRequest
from headrace.text import duration

if TYPE_CHECKING:
    from extensions.tuning.bench.load.targets import Input
    from extensions.tuning.bench.measurement import Load
    from extensions.tuning.bench.reservation import Reservation
    from extensions.tuning.optimize.report import Comparison
    from extensions.tuning.tune.deployment import Deployment
    from extensions.tuning.tune.report import TuneReport
    from extensions.tuning.tune.search import Trial
    from extensions.tuning.tune.tuning import Plan, Progress
    from headrace import Client
    from headrace.config.model.catalog import Catalog, ModelConfig
    from headrace.config.model.optimize import Optimize

_BUDGET: Final = "20m"
#: The batch sizes of the calibration, and how many batches of each.
SIZES: Final = (1, 4, 16, 64)
#: The batch sizes of a calibration that has less time than this.
FEW_SIZES: Final = (1, 16)
_SHORT_S: Final = 240.0
_ROUNDS: Final = 3
#: How long a running server may take to load the model with other options.
_LOAD_S: Final = 600.0


def tune(
    model: options.Model,
    slo: str = option("--slo OBJECTIVE", "What a rate must meet, such as p99=100ms.", ...),
    inputs: Path | None = option(
        "--input -i FILE", "File or folder of inputs (default: the model's example)."
    ),
    budget: str = option(
        "--budget TIME", f"How long all trials may take (default: {_BUDGET}).", _BUDGET
    ),
    folder: Path | None = option(
        "--output -o DIR", "Folder for the journal and the report (default: tune-MODEL)."
    ),
    resume: bool = flag("--resume", "Continue the journal of the folder."),
    apply: bool = flag("--apply", "Set the better options on the running server."),
    url: str | None = option(
        "--url URL", "Run the trials on this server (default: on one of their own)."
    ),
    models: Path | None = option(
        "--models FILE", "Models file (default: models.yaml, else configs/models.yaml)."
    ),
    as_json: options.Json = False,
) -> None:
    """Find the options with which a model serves the highest rate within an objective."""
    # Imported here to keep other commands fast.
    from extensions.tuning.bench.load.scenarios import objective_of
    from extensions.tuning.tune import tuning

    objective, budget_s = objective_of(slo), budget_seconds(budget)
    folder = folder or Path(f"tune-{model}")
    with _subject(model, url, models, f"headrace tune in {folder.absolute()}") as subject:
        if apply:
            # An error here costs nothing; after the trials it costs the whole budget.
            with client_of(url) as client:
                client.model_versions(model)
        sent, described = _inputs(inputs, subject.example, model)
        plan = tuning.Plan(
            model=model, objective=objective, budget_s=budget_s, present=subject.present,
            folder=folder, input=described, where=url or "private",
            models_file=subject.models_file, resume=resume,
        )  # fmt: skip
        report = _tuned(subject, plan, inputs, sent)
    if apply and report.better is not None:
        try:
            report = _applied(report, url, subject.load_timeout_s)
        except HeadraceError:
            _print(report, plan.folder, applied=False)
            raise
        tuning.write(plan.folder, report)
    if as_json:
        output.json_line(report)
    else:
        _print(report, plan.folder, applied=apply)
    raise typer.Exit(ExitCode.DONE if report.confirmation is not None else ExitCode.TIMED_OUT)


def _tuned(subject: _Subject, plan: Plan, inputs: Path | None, sent: list[Input]) -> TuneReport:
    from extensions.tuning.tune import tuning

    private = subject.config is not None
    try:
        with InterruptHandler(None):
            calibration = _Calibration(subject, inputs, plan)
            return tuning.tune(
                msgspec.structs.replace(plan, calibrates=calibration.measures),
                _deployment(subject, plan.folder),
                lambda address: _target(address, plan.model, sent, plan.input, private=private),
                calibration.compare,
                _progress(),
            )
    except (KeyboardInterrupt, Terminated) as error:
        code, reason = stop_reason(error, "the journal")
        output.message(f"{reason}; the same command with --resume goes on")
        raise typer.Exit(code) from None


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """The model that is tuned, and where its options are from."""

    model: str
    present: dict[str, Any]
    example: Any
    load_timeout_s: float
    reservation: Reservation
    url: str = ""
    written: Mapping[str, Any] = field(default_factory=dict)
    models_file: Path | None = None
    config: ModelConfig | None = None
    state_dir: Path = field(default_factory=Path)


@contextmanager
def _subject(model: str, url: str | None, models: Path | None, holder: str) -> Iterator[_Subject]:
    """Reserve the model for this process, and yield it."""
    from extensions.tuning.bench.reservation import reserved, take_back
    from extensions.tuning.bench.serving import apply_options

    if url is None:
        catalog, state_dir = _catalog(models)
        config = own_model(catalog, model, "tune")
        with reserved(str(catalog.path.resolve()), model, holder) as reservation:
            yield _of_models_file(catalog, config, reservation, state_dir)
        return
    with client_of(url) as client, reserved(client.session.url, model, holder) as reservation:
        left = reservation.left
        for text in take_back(client, reservation):
            output.message(text)
        if left is not None:  # the workers load the model again
            apply_options(client, model, left.options, _LOAD_S)
        yield _on_server(client, model, reservation)


def _catalog(models: Path | None) -> tuple[Catalog, Path]:
    from headrace.config.settings import load_settings
    from headrace.models.catalog import load_models
    from headrace.server.packages import SERVER_EXTRAS, require_extras

    require_extras("tune", *SERVER_EXTRAS, "bench")
    settings = load_settings(None, os.environ, {"models_file": str(models) if models else None})
    return load_models(settings), settings.state_dir.absolute()


def _of_models_file(
    catalog: Catalog, config: ModelConfig, reservation: Reservation, state_dir: Path
) -> _Subject:
    from extensions.tuning.tune.tuning import OPTIONS

    present = {name: msgspec.to_builtins(getattr(config, name, None)) for name in OPTIONS}
    return _Subject(
        model=config.name,
        reservation=reservation,
        present=present | ({"replicas": "auto"} if config.auto_replicas else {}),
        example=_example(msgspec.to_builtins(config.inputs) if config.inputs else None),
        load_timeout_s=config.load_timeout_s,
        written=dict(catalog.written[config.name]),
        models_file=catalog.path,
        config=config,
        state_dir=state_dir,
    )


def _on_server(client: Client, model: str, reservation: Reservation) -> _Subject:
    from extensions.tuning.bench.serving import changed_options
    from extensions.tuning.tune.tuning import OPTIONS

    changed = changed_options(client, model)
    shown = client.model(model)
    # The API does not show all options: those that it does not show stay as they are.
    found = {name: getattr(shown, name, None) for name in OPTIONS}
    known = {name: value for name, value in found.items() if value is not None}
    known |= {name: value for name, value in changed.items() if name in OPTIONS}
    return _Subject(
        model=model, present=known, example=_example(shown.inputs), load_timeout_s=_LOAD_S,
        url=client.session.url, reservation=reservation,
    )  # fmt: skip


def _deployment(subject: _Subject, folder: Path) -> Deployment:
    from extensions.tuning.tune.deployment import PrivateDeployment, RunningServer
    from headrace.config.model.optimize import OPTIMIZED

    if subject.models_file is None:
        return RunningServer(
            subject.url, subject.model, subject.load_timeout_s, subject.reservation
        )
    return PrivateDeployment(
        subject.model, subject.present, subject.written, subject.models_file, folder,
        subject.state_dir / OPTIMIZED, subject.load_timeout_s, os.environ,
    )  # fmt: skip


class _Calibration:
    """The calibration of a model of the models file: kept from an earlier run, or measured."""

    def __init__(self, subject: _Subject, inputs: Path | None, plan: Plan) -> None:
        from extensions.tuning.cli.optimize import frame_of, inputs_of
        from extensions.tuning.optimize import kept
        from extensions.tuning.tune.trials import calibration_s
        from headrace.server.gpus import worker_devices

        # A resumed one measures what the first one has left out.
        self._short = calibration_s(plan.budget_s) < _SHORT_S and not plan.resume
        self._subject, self._config = subject, subject.config
        self._found: tuple[Comparison, float] | None = None
        if self._config is None or subject.models_file is None:
            return
        gpu = worker_devices(os.environ, 1)[0].cuda_visible_devices
        device = ("cuda:0" if gpu else "cpu") if self._config.device == "auto" else ""
        self._device = device or self._config.device
        self._folder = subject.models_file.absolute().parent
        self._calibrate = str(inputs.absolute()) if inputs is not None else ""
        self._inputs = self._calibrate or inputs_of(None, self._config, self._folder)
        frame = frame_of(self._config, self._folder, self._device, self._inputs)
        self._found = kept.read(subject.state_dir, frame)
        if self._found is not None and not self._is_whole(self._found[0]):
            self._found = None

    @property
    def measures(self) -> bool:
        """Whether something is left to be measured."""
        return self._config is not None and self._found is None

    def _variants(self) -> list[Optimize]:
        from extensions.tuning.optimize.candidates import candidates

        own = self._config.optimize if self._config is not None else None
        return [*filter(None, [own]), *map(self._with_inputs, candidates(self._device))]

    def _with_inputs(self, variant: Optimize) -> Optimize:
        if variant.precision != "int8" or not self._calibrate:
            return variant
        return msgspec.structs.replace(variant, calibrate=self._calibrate)

    def _is_whole(self, found: Comparison) -> bool:
        """Return whether a kept comparison has all that a calibration would measure.

        A short one would measure the likely winners.
        """
        from extensions.tuning.machine import busy_warning
        from extensions.tuning.optimize.report import LATE

        known = {one.optimize.name for one in found.variants if one.refused != LATE}
        sizes = {time.size for one in found.variants for time in one.times}
        needed = {
            one.name for one in self._variants() if not self._short or one.precision != "float"
        }
        whole = found.without_module or known >= needed
        return whole and len(sizes) >= len(FEW_SIZES) and not busy_warning(found.environment)

    def compare(self, limit_s: float) -> Comparison | None:
        """Return the times of the variants, within a number of seconds, or None without any."""
        if self._config is None:
            return None
        if self._found is not None:
            return self._kept(*self._found)
        from extensions.tuning.cli.optimize import compared, with_late
        from headrace.config.model.optimize import FIXED_SHAPES

        output.message("measures the variants of the model without a server")
        short = limit_s < _SHORT_S
        sizes = FEW_SIZES if short else SIZES
        wanted = self._variants()
        slow = [one for one in wanted if short and one.backend in FIXED_SHAPES]
        # Other sizes than now are possible too.
        largest = max(*sizes, self._config.max_batch_size)
        wider = msgspec.structs.replace(
            self._config, max_batch_size=largest, allowed_batch_sizes=None
        )
        try:
            found = compared(
                wider, self._folder, self._device, [one for one in wanted if one not in slow],
                sizes=sizes, rounds=_ROUNDS, inputs=self._inputs,
                state_dir=self._subject.state_dir, limit_s=limit_s,
            )  # fmt: skip
        except ConfigError as error:
            output.message(f"goes on with the present variant alone: {error.message}")
            return None
        if found.left_out:
            output.message(found.left_out)
        if found.cut:
            output.message(f"goes on with what was measured within {limit_s:.0f} s")
        return with_late(found, wanted)

    def _kept(self, found: Comparison, age_s: float) -> Comparison:
        age = duration(age_s)
        output.message(
            f"uses the times of the variants that were measured {age} ago; `headrace optimize "
            f"{found.model}` measures them again"
        )
        variants = [
            msgspec.structs.replace(one, optimize=self._with_inputs(one.optimize))
            for one in found.variants
        ]
        return msgspec.structs.replace(found, variants=variants)


def _target(address: str, model: str, sent: list[Input], described: str, *, private: bool) -> Any:
    from extensions.tuning.bench.load.targets import target_for

    names = ("HEADRACE_API_KEY", "HEADRACE_CA_FILE")
    key, ca_file = ("" if private else os.environ.get(name, "") for name in names)
    return target_for(
        "headrace", address, model, sent, api_key=key, ca_file=ca_file, described=described
    )


def _example(section: dict[str, Any] | None) -> Any:
    found = (section or {}).get("example")
    return None if found is msgspec.UNSET else found


def _inputs(path: Path | None, example: Any, model: str) -> tuple[list[Input], str]:
    from extensions.tuning.bench.load.targets import Input, read_inputs

    if path is not None:
        return read_inputs(path)
    if example is None:
        raise InvalidRequest(
            f"{model} declares no example input", hint="give a file or a folder with --input"
        )
    if isinstance(example, dict) and example.keys() == {"content_type", "base64"}:
        body, kind = base64.b64decode(example["base64"]), example["content_type"]
    else:
        body, kind = msgspec.json.encode(example), "application/json"
    return [Input(body, kind)], f"the model's example, {len(body):,} bytes"


def _progress() -> Progress:
    from extensions.tuning.bench.report.wording import why_again
    from extensions.tuning.tune.report import labelled
    from extensions.tuning.tune.search import rate_text
    from extensions.tuning.tune.tuning import Progress

    # The first trial is that of the present options.
    present: list[str] = []
    loads: list[Load] = []

    def on_trial(trial: Trial, stage: str) -> None:
        present.append(trial.candidate.key)
        result = rate_text(trial) + (f" ({trial.error})" if trial.error else "")
        label = labelled(trial.candidate, present=trial.candidate.key == present[0])
        output.message(f"{stage}: {label}: {result}, {duration(trial.seconds)}")
        loads.clear()

    def on_load(load: Load) -> None:
        met = load.verdict is not None and load.verdict.met and load.steady and not load.refused
        again = why_again(load, loads)
        loads.append(load)
        text = f"  {load.offered_rate or 0:.1f}/s{again}: {'met' if met else 'missed'}"
        output.message(text)

    return Progress(on_text=output.message, on_trial=on_trial, on_load=on_load)


def _applied(report: TuneReport, url: str | None, load_timeout_s: float) -> TuneReport:
    """Set the better options on the server, and return the report with the way back."""
    from extensions.tuning.bench.reservation import reserved, take_back
    from extensions.tuning.bench.serving import apply_options, changed_options, revert_command

    holder = f"headrace tune --apply {report.model}"
    with (
        client_of(url) as client,
        reserved(client.session.url, report.model, holder) as reservation,
    ):
        # The way back must not lead to the options of a tuning that was killed.
        for text in take_back(client, reservation):
            output.message(text)
        before = changed_options(client, report.model)
        keys = list(report.options)
        command = revert_command(report.model, before, keys, client.session.url)
        # Before the change: if this process ends now, the way back is known.
        output.message(f"applies the options; to take them back: {command}")
        apply_options(client, report.model, report.options, load_timeout_s)
    return msgspec.structs.replace(report, revert=command)


def _print(report: TuneReport, folder: Path, *, applied: bool) -> None:
    from extensions.tuning.machine import busy_warning

    if busy := busy_warning(report.environment):
        output.message(busy)
    output.line(report.verdict)
    if report.better is not None:
        output.line(report.patch.rstrip())
        if report.environ:
            values = " ".join(f"{key}={value}" for key, value in report.environ.items())
            output.line(f"start the workers with {values}")
        if not applied:
            file = shlex.quote(str(folder / "models.patch"))
            output.message(
                f"apply it with `patch -p0 < {file}`, or to a server with --resume --apply"
            )
    output.message(f"the report is in {folder / 'report.md'}")
