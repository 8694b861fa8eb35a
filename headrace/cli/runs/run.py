"""`headrace run`: runs a source through a model into an output and reports the progress."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from headrace import errors
from headrace.cli.runs.progress import RunProgressDisplay
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode, exit_code
from headrace.runs.engine.spec import RunSpec
from headrace.runs.registry import sink_for, source_for
from headrace.runs.sources.options import SourceOptions

if TYPE_CHECKING:
    from headrace.runs.engine.engine import Engine, State

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The arguments of `headrace run`; see the options of the same names."""

    model: str
    source: str
    output: str
    input: str | None = None
    key: str | None = None
    glob: tuple[str, ...] = ()
    content_type: str | None = None
    delimiter: str | None = None
    only_failed: bool = False
    name: str = ""
    run_id: str | None = None
    in_flight: int = 4000
    version: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    forget: bool = True
    by_ref: bool = False
    retry_s: float = 86_400
    quiet: bool = False
    as_json: bool = False

    def spec(self) -> RunSpec:
        """Return the engine's part of the arguments."""
        options: Any = self.options
        return RunSpec(
            model=self.model, version=self.version, options=options, run_id=self.run_id,
            content_type=self.content_type, name=self.name, in_flight=self.in_flight,
            only_failed=self.only_failed, forget=self.forget, by_ref=self.by_ref,
        )  # fmt: skip

    def source_options(self) -> SourceOptions:
        """Return how to read the source."""
        return SourceOptions(
            input=self.input, key=self.key, glob=self.glob, content_type=self.content_type,
            delimiter=self.delimiter, output=self.output, by_ref=self.by_ref,
        )  # fmt: skip


def run(url: str | None, request: RunRequest) -> ExitCode:
    """Run until all inputs have a row, or until the run is stopped.

    Raises:
        HeadraceError: the run did not start.
    """
    from headrace import Client
    from headrace.runs.engine.engine import Engine

    source = source_for(request.source, request.source_options())
    sink = sink_for(request.output, source)
    with Client(url, retry_s=request.retry_s) as client:
        # A misspelt model name must not leave an output file behind.
        client.model(request.model)
        engine = Engine(client, request.spec(), source, sink)
        try:
            try:
                engine.open()
            except OSError as error:
                code, reason = _reason(error)
                output.message(reason)
                return code
            return _Session(url, engine, request).go()
        finally:
            engine.close()


class _Session:
    """One run of the command that has opened its output."""

    def __init__(self, url: str | None, engine: Engine, request: RunRequest) -> None:
        self._engine = engine
        self._request = request
        self._started = time.monotonic()
        self._signal: signal.Signals | None = None
        self._display = RunProgressDisplay(url, engine, quiet=request.quiet, source=request.source)

    def go(self) -> ExitCode:
        """Run, and print how the run ended."""
        already = self._engine.checkpoint.ended
        if self._engine.progress.before and not already:
            self._message(f"resumed: {self._engine.progress.before:,} inputs already have a row")
        try:
            with self._stopping(), self._display:
                state = self._engine.run(self._display.update)
        except (errors.HeadraceError, OSError, KeyboardInterrupt) as error:
            code, reason = _reason(error)
            self._display.report("failed", reason)
            output.message(reason)
            self._print_resume_hint(after="after fixing this, " if code is ExitCode.USAGE else "")
            return code
        self._display.report(state)
        return self._ended(state, already=already)

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Stop the run in order at the first signal, at once at the second; neither loses rows."""
        before: dict[signal.Signals, Any] = {}

        def on_signal(number: int, frame: FrameType | None) -> None:
            if self._signal is not None:
                raise KeyboardInterrupt
            self._signal = signal.Signals(number)
            self._engine.stop()

        for number in _SIGNALS:
            handler = signal.getsignal(number)
            # `nohup` and background jobs of a shell ignore some signals; keep that.
            if handler is not signal.SIG_IGN:
                before[number] = handler
                signal.signal(number, on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ended(self, state: State, *, already: bool) -> ExitCode:
        progress, request = self._engine.progress, self._request
        seconds = time.monotonic() - self._started
        if request.as_json:
            output.json_line({
                "run": self._engine.checkpoint.run, "state": state, "total": progress.total,
                "succeeded": progress.succeeded, "failed": progress.failed,
                "before": progress.before, "seconds": round(seconds, 3), "output": request.output,
            })  # fmt: skip
        if state == "ended":
            self._message(self._summary(seconds, already=already))
            if progress.failed:
                self._message("to run the failed inputs again, add --only-failed to the command")
            return ExitCode.FAILED if progress.failed else ExitCode.DONE
        left = "" if state == "cancelled" else f"; {progress.in_flight:,} jobs in flight continue"
        ended = "cancelled" if state == "cancelled" else "stopped"
        output.message(f"{ended}: {progress.ended:,} inputs have a row{left}")
        self._print_resume_hint()
        if state == "cancelled":
            return ExitCode.FAILED
        is_int = self._signal in (None, signal.SIGINT)
        return ExitCode.INTERRUPTED if is_int else ExitCode.TERMINATED

    def _summary(self, seconds: float, *, already: bool) -> str:
        progress = self._engine.progress
        counts = f"{progress.succeeded:,} succeeded"
        if progress.failed:
            counts += f", {progress.failed:,} failed"
        if already:
            return f"already ended: {counts}; see {self._request.output}"
        count = progress.ended - progress.before
        before = f", {progress.before:,} of them earlier" if progress.before else ""
        rate = f" ({count / seconds:,.0f} per second)" if seconds >= 1 else ""
        return f"{counts}{before} in {seconds:.1f} s{rate}; see {self._request.output}"

    def _print_resume_hint(self, after: str = "") -> None:
        run_id = self._engine.checkpoint.run
        resume = f"headrace runs resume {run_id}"
        output.message(f"{after}resume with the same command, or with: {resume}")

    def _message(self, text: str) -> None:
        if not self._request.quiet:
            output.message(text)


def _reason(error: BaseException) -> tuple[ExitCode, str]:
    if isinstance(error, errors.HeadraceError):
        return exit_code(error), output.error_text(error)
    if isinstance(error, OSError):
        return ExitCode.FAILED, f"the output cannot be written: {error.strerror or error}"
    return ExitCode.INTERRUPTED, "interrupted"
