"""`headrace bench`: measures a running server under a load, or finds its peak."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import typer
from typer.core import TyperGroup
from typing_extensions import override

from extensions.tuning.cli.arguments import check_folder, json_text, write_file
from headrace.cli.shared import options, output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.interrupts import InterruptHandler, Terminated, stop_reason
from headrace.cli.shared.options import argument, flag, option
from headrace.errors import InvalidRequest

if TYPE_CHECKING:
    from extensions.tuning.bench.load.rows import RowWriter
    from extensions.tuning.bench.load.scenarios import Scenario
    from extensions.tuning.bench.load.targets import Target
    from extensions.tuning.bench.measurement import Load, Measurement, Objective, Protocol


def compare(
    before: Path = argument("A", "Measurement (a file of --json).", ...),
    after: Path = argument("B", "Measurement that is compared with A.", ...),
    markdown: bool = flag("--markdown", "Print Markdown."),
    html: Path | None = option("--html FILE", "Write a page with the charts of both."),
    as_json: options.Json = False,
) -> None:
    """Compare two measurements; a difference is named only where the intervals do not overlap."""
    # Imported here to keep other commands fast.
    from extensions.tuning.bench import report
    from extensions.tuning.bench.measurement import read_measurement

    one, other = read_measurement(before), read_measurement(after)
    found, limits = report.compare(one, other)
    if html is not None:
        write_file(html, report.html([one, other]))
    if as_json:
        differences = [
            {**row._asdict(), "before": row.before._asdict(), "after": row.after._asdict()}
            for row in found
        ]
        output.json_line({"differences": differences, "limits": limits})
    elif markdown:
        typer.echo(report.differences_table(found, limits), nl=False)
    else:
        rows = [(one.load, one.figure, one.before.text, one.after.text, one.text) for one in found]
        output.table(("load", "figure", before.stem, after.stem, "verdict"), rows)
        for limit in limits:
            output.message(limit)


_DURATION_S: Final = 30.0
_TIMEOUT_S: Final = 60.0
_CONFIDENCE: Final = 0.99
_OUTPUT: Final = Path("bench")
_COLUMNS: Final = (
    "load", ">requests", ">failed", ">rate/s", ">95 % interval", ">p50 ms", ">p95 ms", ">p99 ms",
    ">max ms", ">lag p99", "objective",
)  # fmt: skip


class _Group(TyperGroup):
    """`bench MODEL` is `bench run MODEL`."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


bench_group = typer.Typer(
    help="Measure a running server: `headrace bench MODEL --input FILE`.",
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode=None,
)
bench_group.command()(compare)


@bench_group.command()
def run(
    model: str | None = argument(
        "MODEL",
        "Name of the model; not needed with --sweep.",
        autocompletion=options.complete_model,
    ),
    inputs: Path | None = option("--input -i PATH", "File, or folder of files, to send in turn."),
    scenario: str | None = option(
        "--scenario SCENARIO",
        "How requests arrive: server, closed:N, single, offline or replay:FILE "
        "(default: server with --rate, else single).",
    ),
    rate: str | None = option(
        "--rate LIST", "Requests a second of server, such as 50 or 50,100,200."
    ),
    peak: bool = flag("--find-peak", "Find the highest rate that meets --slo."),
    slo: str | None = option("--slo OBJECTIVE", "What requests must meet, such as p99=100ms."),
    confidence: float = option(
        "--confidence SHARE",
        f"How sure a verdict must be, from 0 to 1 (default: {_CONFIDENCE:g}).",
        _CONFIDENCE,
    ),
    duration: float = option(
        "--duration SECONDS",
        f"Time of each load; --find-peak takes longer if it must (default: {_DURATION_S:g}).",
        _DURATION_S,
        min=0.5,
        max=86_400,
    ),
    warm_up: float | None = option(
        "--warm-up SECONDS", "Time to leave out at the start of a load (default: found).", min=0
    ),
    requests: int | None = option(
        "--requests N", "End a load after N requests (default: no limit).", min=1
    ),
    timeout: float = option(
        "--timeout SECONDS",
        f"Time after which a request has failed (default: {_TIMEOUT_S:g}).",
        _TIMEOUT_S,
        min=0.1,
        max=3600,
    ),
    protocol: str = option(
        "--protocol NAME", "headrace, torchserve or triton (default: headrace).", "headrace"
    ),
    version: str | None = option(
        "--version VERSION", "Version of the model (default: the server's choice)."
    ),
    content_type: options.ContentType = None,
    param: options.Param = None,
    processes: int = option(
        "--processes N", "Processes that send the load (default: 1).", 1, min=1, max=256
    ),
    seed: int = option("--seed N", "Seed of the arrivals (default: 1).", 1, min=0),
    name: str | None = option("--name NAME", "Name in reports (default: the model's)."),
    price: float | None = option(
        "--price-per-hour PRICE", "Price of the hardware; adds the cost of 1,000 results.", min=0
    ),
    currency: str = option("--currency NAME", "Unit of the price.", ""),
    json_file: Path | None = option("--json FILE", "Write every figure as JSON."),
    rows: Path | None = option("--rows FILE", "Write a row for each request: .parquet or .jsonl."),
    html: Path | None = option("--html FILE", "Write a report as one HTML page."),
    markdown: Path | None = option("--markdown FILE", "Write a report as Markdown."),
    sweep: Path | None = option(
        "--sweep FILE", "Run TorchServe's benchmark suite, a YAML file; see docs/bench.md."
    ),
    folder: Path = option(
        "--output -o DIR", f"Folder for the files of --sweep (default: {_OUTPUT}).", _OUTPUT
    ),
    url: options.Url = None,
) -> None:
    """Measure a running server: its rate, its latency, and whether it meets an objective.

    Exit code 1: an objective was not met, or a load does not count.
    """
    # Imported here to keep other commands fast.
    from extensions.tuning.bench.load.scenarios import objective_of
    from extensions.tuning.bench.measure import (
        LoadOptions,
        check_warm_up,
        find_peak,
        measure,
        priced,
    )

    if sweep is not None:
        from extensions.tuning.cli.sweep import run_sweep

        with _stoppable():
            code = run_sweep(sweep, folder, model, inputs, url, processes=processes)
        raise typer.Exit(code)
    if model is None or inputs is None:
        missing = "the model" if model is None else "the input"
        raise InvalidRequest(
            f"{missing} is missing", hint="write headrace bench MODEL --input FILE"
        )
    objective = objective_of(slo, confidence=confidence) if slo is not None else None
    scenarios = _scenarios(scenario, rate, requests, peak=peak)
    chosen = LoadOptions(
        duration_s=duration, warm_up_s=warm_up, timeout_s=timeout, processes=processes, seed=seed
    )
    check_warm_up(chosen, scenarios)
    for file in (json_file, html, markdown):
        check_folder(file)
    so_far: list[Measurement] = []
    code = ExitCode.DONE
    try:
        with InterruptHandler(None), _rows_to(rows) as writer:
            target = _target(protocol, url, model, version, inputs, content_type, param)
            chosen = msgspec.structs.replace(
                chosen, on_load=_progress(), on_measured=so_far.append,
                on_rows=writer.write if writer is not None else None,
            )  # fmt: skip
            if peak:
                found = find_peak(target, _needed(objective), chosen, name=name or "")
            else:
                found = measure(scenarios, target, chosen, objective=objective, name=name or "")
    except InvalidRequest as error:
        raise _of_param(error, options.parameters(param), model) from None
    except (KeyboardInterrupt, Terminated) as error:
        code, found = _interrupted(error, so_far)
    if price is not None:
        found = priced(found, price, currency)
    _print(found)
    _write(found, json_file, html, markdown)
    raise typer.Exit(code or verdict(found))


def _of_param(error: InvalidRequest, names: Iterable[str], model: str) -> InvalidRequest:
    """Return an error of a query parameter as one of --param, which had set it."""
    for name in names:
        if f"query parameter {name!r}" in error.message:
            return InvalidRequest(
                f"--param {name}: model {model} has no such parameter, and jobs no such option",
                hint=f"headrace models {model} lists the parameters",
            )
        if f"query parameter {name}" in error.message:
            message = error.message.replace(f"query parameter {name}", f"--param {name}")
            return InvalidRequest(message, hint=error.hint)
    return error


def _interrupted(
    error: BaseException, so_far: Sequence[Measurement]
) -> tuple[ExitCode, Measurement]:
    code, reason = stop_reason(error, "a file")
    if not so_far:
        output.message(f"{reason}; no load had ended")
        raise typer.Exit(code) from None
    loads = len(so_far[-1].loads)
    output.message(f"{reason}; the figures are those of the {loads} loads that had ended")
    return code, msgspec.structs.replace(so_far[-1], interrupted=True)


@contextmanager
def _stoppable() -> Iterator[None]:
    """End a suite in words on Ctrl-C, SIGTERM and SIGHUP; its options are taken back first."""
    try:
        with InterruptHandler(None):
            yield
    except (KeyboardInterrupt, Terminated) as error:
        code, reason = stop_reason(error, "a file")
        output.message(reason)
        raise typer.Exit(code) from None


def _scenarios(
    text: str | None, rates: str | None, requests: int | None, *, peak: bool
) -> list[Scenario]:
    from extensions.tuning.bench.load.scenarios import scenario_of

    if peak:
        if rates is not None or text not in (None, "server"):
            raise InvalidRequest(
                "--find-peak chooses the rates of the scenario server itself",
                hint="remove --rate and --scenario",
            )
        return []
    if rates is None:
        return [scenario_of(text or "single", requests=requests or 0)]
    found = []
    for one in rates.split(","):
        try:
            rate = float(one)
        except ValueError:
            rate = 0.0
        if not 0 < rate < float("inf"):
            raise InvalidRequest(
                f"--rate {rates}: {one.strip()!r} is not a rate", hint="write it as 50,100,200"
            )
        found.append(scenario_of(text or "server", rate=rate, requests=requests or 0))
    return found


def _target(
    protocol: str,
    url: str | None,
    model: str,
    version: str | None,
    inputs: Path,
    content_type: str | None,
    param: list[str] | None,
) -> Target:
    from extensions.tuning.bench.load.probe import tensor_of
    from extensions.tuning.bench.load.targets import read_inputs, target_for
    from headrace.client.http.transport import DEFAULT_URL, ENV_API_KEY, ENV_CA_FILE

    if protocol not in ("headrace", "torchserve", "triton"):
        raise InvalidRequest(
            f"--protocol {protocol} is unknown", hint="use headrace, torchserve or triton"
        )
    chosen = cast("Protocol", protocol)
    read, described = read_inputs(inputs, content_type or "")
    address, ca_file = url or DEFAULT_URL, os.environ.get(ENV_CA_FILE) or ""
    return target_for(
        chosen, address, model, read, version=version or "", described=described,
        parameters=options.parameters(param), ca_file=ca_file,
        # A key of Headrace is for no other server.
        api_key=(os.environ.get(ENV_API_KEY) or "") if chosen != "triton" else "",
        tensor=tensor_of(address, model, version or "", ca_file) if chosen == "triton" else None,
    )  # fmt: skip


def _needed(objective: Objective | None) -> Objective:
    if objective is None:
        raise InvalidRequest("--find-peak needs an objective", hint="add --slo p99=100ms")
    return objective


@contextmanager
def _rows_to(file: Path | None) -> Iterator[RowWriter | None]:
    from extensions.tuning.bench.load.rows import RowWriter

    writer = RowWriter(file) if file is not None else None
    try:
        yield writer
    finally:
        if writer is not None:
            writer.close()


def _progress() -> Callable[[Load], None]:
    from extensions.tuning.bench.report.wording import load_name, why_again

    earlier: list[Load] = []

    def on_load(load: Load) -> None:
        text = f"{load_name(load)}{why_again(load, earlier)}: {load.rate:.1f}/s, "
        text += f"p99 {load.latency.p99:.1f} ms"
        if load.refused:
            text += "; does not count"
        elif load.verdict is not None:
            text += f"; {load.verdict.word}"
        earlier.append(load)
        output.message(text)

    return on_load


def _print(found: Measurement) -> None:
    from extensions.tuning.bench.report import wording

    for text in wording.busy_warnings([found]):
        output.message(text)
    output.table(_COLUMNS, [_row(load) for load in found.loads])
    # Of a search only the end is of interest.
    searched = found.peak is not None
    for load in () if searched else found.loads:
        for note in wording.notes(load):
            output.line(note)
        if load.stages:
            times = (f"{stage} {spread.mean:.1f}" for stage, spread in load.stages.items())
            output.line(f"{wording.load_name(load)}: mean ms: {', '.join(times)}")
    for _, text in () if searched else wording.verdicts(found):
        output.line(text)
    for text in (wording.peak_text(found), wording.cost_text(found)):
        if text:
            output.line(text)


def _row(load: Load) -> tuple[str, ...]:
    from extensions.tuning.bench.report import wording

    one = load.latency
    times = [f"{value:.1f}" for value in (one.p50, one.p95, one.p99, one.max, load.lag.p99)]
    return (
        wording.load_name(load), f"{load.requests:,}", f"{load.requests - load.succeeded:,}",
        f"{load.rate:.1f}", f"{load.rate_low:.1f} to {load.rate_high:.1f}", *times,
        wording.objective_text(load),
    )  # fmt: skip


def _write(
    found: Measurement, json_file: Path | None, html: Path | None, markdown: Path | None
) -> None:
    from extensions.tuning.bench import report

    if json_file is not None:
        write_file(json_file, json_text(found))
    if html is not None:
        write_file(html, report.html([found]))
    if markdown is not None:
        write_file(markdown, report.markdown([found]))


def verdict(found: Measurement) -> ExitCode:
    """Return 1 if an objective was missed, no rate met it, or a load does not count."""
    if found.peak is not None:
        return ExitCode.DONE if found.peak.rate > 0 else ExitCode.FAILED
    failed = any(
        load.refused or (load.verdict is not None and not load.verdict.met) for load in found.loads
    )
    return ExitCode.FAILED if failed else ExitCode.DONE
