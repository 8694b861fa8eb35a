"""`headrace run`: a source through a model into an output, and what is said about it meanwhile."""

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
    """What is asked of `headrace run`; the options of the same names say what each means."""

    model: str
    source: str
    output: str
    input: str | None = None
    key: str | None = None
    glob: tuple[str, ...] = ()
    content_type: str | None = None
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

    def order(self) -> RunSpec:
        """The same for the engine."""
        options: Any = self.options
        return RunSpec(
            model=self.model, version=self.version, options=options, run_id=self.run_id,
            content_type=self.content_type, name=self.name, in_flight=self.in_flight,
            only_failed=self.only_failed, forget=self.forget, by_ref=self.by_ref,
        )  # fmt: skip

    def source_options(self) -> SourceOptions:
        """How the source is read."""
        return SourceOptions(
            input=self.input, key=self.key, glob=self.glob, content_type=self.content_type,
            output=self.output, by_ref=self.by_ref,
        )  # fmt: skip


def run(url: str | None, asked: RunRequest) -> ExitCode:
    """Run to the end, or until something ends it.

    Raises:
        HeadraceError: nothing was begun.
    """
    from headrace import Client
    from headrace.runs.engine.engine import Engine

    source = source_for(asked.source, asked.source_options())
    sink = sink_for(asked.output, source)
    with Client(url, retry_s=asked.retry_s) as client:
        # Before anything is written: a name that is misspelt leaves no file behind.
        client.model(asked.model)
        engine = Engine(client, asked.order(), source, sink)
        try:
            try:
                engine.open()
            except OSError as error:
                code, why = _reason(error)
                output.say(why)
                return code
            return _Session(url, engine, asked).go()
        finally:
            engine.close()


class _Session:
    """One run of the command, once the output is its own."""

    def __init__(self, url: str | None, engine: Engine, asked: RunRequest) -> None:
        self._engine = engine
        self._asked = asked
        self._started = time.monotonic()
        self._signal: signal.Signals | None = None
        self._watch = RunProgressDisplay(url, engine, quiet=asked.quiet, source=asked.source)

    def go(self) -> ExitCode:
        """Run, and say how it ended."""
        already = self._engine.checkpoint.ended
        if self._engine.progress.before and not already:
            self._say(f"goes on: {self._engine.progress.before:,} inputs have their row")
        try:
            with self._stopping(), self._watch:
                state = self._engine.run(self._watch.look)
        except (errors.HeadraceError, OSError, KeyboardInterrupt) as error:
            code, why = _reason(error)
            self._watch.tell("failed", why)
            output.say(why)
            self._say_how_to_go_on(first="once that is mended, " if code is ExitCode.USAGE else "")
            return code
        self._watch.tell(state)
        return self._ended(state, already=already)

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """The first signal ends the run in order, the second at once: that loses nothing either."""
        before: dict[signal.Signals, Any] = {}

        def came(number: int, frame: FrameType | None) -> None:
            if self._signal is not None:
                raise KeyboardInterrupt
            self._signal = signal.Signals(number)
            self._engine.stop()

        for number in _SIGNALS:
            was = signal.getsignal(number)
            # `nohup` and shells' background jobs ignore some, and that stays so.
            if was is not signal.SIG_IGN:
                before[number] = was
                signal.signal(number, came)
        try:
            yield
        finally:
            for number, was in before.items():
                signal.signal(number, was)

    def _ended(self, state: State, *, already: bool) -> ExitCode:
        progress, asked = self._engine.progress, self._asked
        seconds = time.monotonic() - self._started
        if asked.as_json:
            output.json_line({
                "run": self._engine.checkpoint.run, "state": state, "total": progress.total,
                "succeeded": progress.succeeded, "failed": progress.failed,
                "before": progress.before, "seconds": round(seconds, 3), "output": asked.output,
            })  # fmt: skip
        if state == "ended":
            self._say(self._summary(seconds, already=already))
            if progress.failed:
                self._say("to run again what failed: the same command with --only-failed")
            return ExitCode.FAILED if progress.failed else ExitCode.DONE
        word = "cancelled" if state == "cancelled" else "stopped"
        left = "" if state == "cancelled" else f", {progress.in_flight:,} under way go on"
        output.say(f"{word}: {progress.ended:,} inputs have their row{left}")
        self._say_how_to_go_on()
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
            return f"had ended before: {counts}; see {self._asked.output}"
        count = progress.ended - progress.before
        before = f", {progress.before:,} of them before" if progress.before else ""
        rate = f" ({count / seconds:,.0f} a second)" if seconds >= 1 else ""
        return f"{counts}{before} in {seconds:.1f} s{rate}; see {self._asked.output}"

    def _say_how_to_go_on(self, first: str = "") -> None:
        run_id = self._engine.checkpoint.run
        resume = f"headrace runs resume {run_id}"
        output.say(f"{first}the same command goes on from here; so does: {resume}")

    def _say(self, text: str) -> None:
        if not self._asked.quiet:
            output.say(text)


def _reason(error: BaseException) -> tuple[ExitCode, str]:
    if isinstance(error, errors.HeadraceError):
        return exit_code(error), output.advice(error)
    if isinstance(error, OSError):
        return ExitCode.FAILED, f"the output cannot be written: {error.strerror or error}"
    return ExitCode.INTERRUPTED, "interrupted"
