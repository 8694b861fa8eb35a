"""`headrace run`: runs a source through a model into an output and reports the progress."""

from __future__ import annotations

import gc
import signal
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import typer

from extensions.runs.cli.progress import RunProgressDisplay
from headrace import errors
from headrace.cli.shared import options, output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.interrupts import handled_signals, stop_reason
from headrace.cli.shared.options import argument, client_of, flag, option
from headrace.text import rate

if TYPE_CHECKING:
    from headrace.runs.engine import Engine, State

IN_FLIGHT: Final = 4000
IN_FLIGHT_MAX: Final = 100_000
RETRY_S: Final = 86_400
#: The garbage collector runs when this many objects were added since its last run. A run has
#: 20,000 in flight and leaves no cycles: with Python's 700 the collector takes 10 % of the CPU of
#: `headrace run` (benchmarks.runs echo).
GC_AFTER_OBJECTS: Final = 50_000
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(
    model: options.Model,
    source: str = argument(
        "SRC",
        "Folder (recursive), quoted pattern, file of JSON lines, CSV, Parquet or tar, "
        "s3://bucket/prefix, or - for paths on standard input.",
        ...,
    ),
    target: str = option(
        "--output -o OUT",
        "Output with a row per input; its name sets the format: .jsonl, .parquet.",
        ...,
    ),
    column: str | None = option(
        "--input COLUMNS",
        "Column that is the input, or several (a,b) that are an object; the others are copied to "
        "the output (default: the whole row).",
    ),
    key: str | None = option(
        "--key COLUMN", "Column with the key of an input (default: its position)."
    ),
    glob: list[str] | None = option(
        "--glob PATTERN",
        "Only files of a folder whose name (or path, with a /) matches; repeatable.",
    ),
    content_type: options.ContentType = None,
    delimiter: str | None = option(
        "--delimiter CHAR",
        "Delimiter of CSV columns: comma, tab, semicolon, pipe, or any other character "
        "(default: comma; for .tsv files tab).",
    ),
    by_ref: bool = flag(
        "--by-ref", "Send file names, not contents, to a server that shares the disk."
    ),
    online: bool = flag("--online", "Use online priority (default: batch priority)."),
    only_failed: bool = flag("--only-failed", "Run the failed inputs of an ended run again."),
    name: str = option("--name NAME", "Name of the run in lists.", ""),
    run_id: str | None = option("--run-id ID", "Id of the run (default: a new id)."),
    limit: int | None = option("--limit N", "Run only the first N inputs (default: all).", min=1),
    in_flight: int = option(
        "--in-flight N",
        f"Maximum number of inputs in flight (default: {IN_FLIGHT}).",
        IN_FLIGHT,
        min=1,
        max=IN_FLIGHT_MAX,
    ),
    version: options.Version = None,
    param: options.Param = None,
    job_timeout: float | None = option(
        "--job-timeout SECONDS", "Maximum run time of an input (default: the model's)."
    ),
    max_retries: options.MaxRetries = None,
    result_ttl: int | None = option(
        "--result-ttl SECONDS",
        "How long the server keeps a result that is not in the output yet (default: one day).",
    ),
    keep_jobs: bool = flag(
        "--keep-jobs", "Keep jobs on the server for --result-ttl after they are in the output."
    ),
    retry: float = options.retry("is unreachable or its storage is full", RETRY_S),
    quiet: bool = flag("--quiet -q", "Print no progress and no summary."),
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Run every input of a folder, file or bucket through a model; repeat it to resume."""
    from extensions.runs.offline import engine_for
    from extensions.runs.sources.options import SourceOptions
    from headrace.runs.interfaces import BATCH_PRIORITY, RunSpec

    job_options: Any = options.checked_options({
        "priority": 0 if online else BATCH_PRIORITY, "timeout": job_timeout,
        "max_retries": max_retries, "result_ttl": result_ttl,
    })  # fmt: skip
    spec = RunSpec(
        model=model, version=version, options=job_options, content_type=content_type,
        run_id=options.checked_id(run_id), name=name, in_flight=in_flight, only_failed=only_failed,
        forget=not keep_jobs, by_ref=by_ref, parameters=options.parameters(param),
    )  # fmt: skip
    inputs = SourceOptions(
        input=column, key=key, glob=tuple(glob or ()), content_type=content_type,
        delimiter=delimiter, output=target, by_ref=by_ref,
    )  # fmt: skip
    gc.set_threshold(GC_AFTER_OBJECTS)
    with client_of(url, retry_s=retry) as client:
        engine = engine_for(client, spec, source, limit, inputs)
        try:
            try:
                engine.open()
            except OSError as error:
                code, reason = stop_reason(error, "the output")
                output.message(reason)
                raise typer.Exit(code) from None
            display = RunProgressDisplay(url, engine, quiet=quiet, source=source)
            command = _Run(engine, display, source, target, quiet, as_json)
            raise typer.Exit(command.go())
        finally:
            engine.close()


@dataclass
class _Run:
    """One run of the command that has opened its output."""

    engine: Engine
    display: RunProgressDisplay
    source: str
    target: str
    quiet: bool
    as_json: bool
    _started: float = field(default_factory=time.monotonic)
    _signal: signal.Signals | None = None

    def go(self) -> ExitCode:
        """Run, and print how the run ended."""
        already = self.engine.checkpoint.ended
        if self.engine.progress.before and not already:
            self._message(f"resumed: {self.engine.progress.before:,} inputs already have a row")
        try:
            with handled_signals(_SIGNALS, self._on_signal), self.display:
                state = self.engine.run(self.display.update)
        except (errors.HeadraceError, OSError, KeyboardInterrupt) as error:
            code, reason = stop_reason(error, "the output")
            self.display.report("failed", reason)
            output.message(reason)
            self._print_resume_hint(after="after fixing this, " if code is ExitCode.USAGE else "")
            return code
        self.display.report(state)
        return self._ended(state, already=already)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Stop the run in order at the first signal, at once at the second; neither loses rows."""
        if self._signal is not None:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number)
        self.engine.stop()

    def _ended(self, state: State, *, already: bool) -> ExitCode:
        progress = self.engine.progress
        seconds = time.monotonic() - self._started
        if self.as_json:
            output.json_line({
                "run": self.engine.checkpoint.run, "state": state, "total": progress.total,
                "succeeded": progress.succeeded, "failed": progress.failed,
                "before": progress.before, "seconds": round(seconds, 3), "output": self.target,
            })  # fmt: skip
        if state == "ended":
            self._message(self._summary(seconds, already=already))
            if not progress.ended:
                source = "standard input" if self.source == "-" else self.source
                output.message(f"warning: {source} has no inputs")
            self._print_first_failure()
            if progress.failed:
                self._message("to run the failed inputs again, add --only-failed to the command")
            return ExitCode.FAILED if progress.failed else ExitCode.DONE
        left = "" if state == "cancelled" else f"; {progress.in_flight:,} jobs in flight continue"
        ended = "cancelled" if state == "cancelled" else "stopped"
        output.message(f"{ended}: {progress.ended:,} inputs have a row{left}")
        self._print_first_failure()
        self._print_resume_hint()
        if state == "cancelled":
            return ExitCode.FAILED
        is_int = self._signal in (None, signal.SIGINT)
        return ExitCode.INTERRUPTED if is_int else ExitCode.TERMINATED

    def _print_first_failure(self) -> None:
        first = self.engine.progress.first_failure
        if first:
            self._message(f"the first failure: {output.short_line(first)}")

    def _summary(self, seconds: float, *, already: bool) -> str:
        progress = self.engine.progress
        counts = f"{progress.succeeded:,} succeeded"
        if progress.failed:
            counts += f", {progress.failed:,} failed"
        if already:
            return f"already ended: {counts}; see {self.target}"
        count = progress.ended - progress.before
        before = f", {progress.before:,} of them earlier" if progress.before else ""
        speed = f" ({rate(count / seconds)})" if seconds >= 1 else ""
        return f"{counts}{before} in {seconds:.1f} s{speed}; see {self.target}"

    def _print_resume_hint(self, after: str = "") -> None:
        run_id = self.engine.checkpoint.run
        resume = f"headrace runs resume {run_id}"
        output.message(f"{after}resume with the same command, or with: {resume}")

    def _message(self, text: str) -> None:
        if not self.quiet:
            output.message(text)
