"""`headrace submit`: submits inputs and prints job ids or outcomes.

If the command ends before its jobs, it prints their ids, so that no accepted job is lost.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import typer

from headrace import errors
from headrace.cli.jobs.outcomes import PreviousRows, ResumeFile, WrittenOutcome, explain, record
from headrace.cli.jobs.results import print_result
from headrace.cli.shared import options, output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.inputs import STDIN, Input, Sources, StdinAs
from headrace.cli.shared.interrupts import InterruptHandler, Terminated, TimeUp, stop_reason
from headrace.cli.shared.options import argument, client_of, flag, option
from headrace.cli.shared.progress_bar import Bar
from headrace.jobs.ids import new_id
from headrace.text import duration, rate

if TYPE_CHECKING:
    from headrace import Client
    from headrace.client.models import Job
    from headrace.client.sansio import Pause

IN_FLIGHT: Final = 1000
IN_FLIGHT_MAX: Final = 100_000
RETRY_S: Final = 60
#: A wait for a limit is printed if it is at least so long.
LIMIT_SHOWN_S: Final = 2.0
#: Number of failures that are also printed if a file has all of them.
FAILURES_SHOWN: Final = 10
#: At most this many ids are printed as one command to paste; more are listed.
IDS_IN_A_COMMAND: Final = 20
#: An outcome, and the index that the client gave its input; None if it never got the input.
_Indexed: TypeAlias = tuple[WrittenOutcome, int | None]


def submit(
    model: options.Model,
    inputs: list[str] | None = argument(
        "INPUT",
        "Files, folders (recursive), quoted patterns, or - for standard input.",
    ),
    json_input: list[str] | None = option(
        "--json-input JSON", "JSON value as an input; repeatable."
    ),
    text: list[str] | None = option("--text TEXT", "Text as an input; repeatable."),
    input_ref: list[str] | None = option(
        "--input-ref REF",
        "File or object that the server reads: file:/folder/name or s3://bucket/key; repeatable.",
    ),
    stdin_as: StdinAs = option(
        "--stdin",
        "Kind of the lines on standard input; auto: JSON if the first line begins with "
        '{ [ or ", else paths.',
        StdinAs.AUTO,
        show_default=True,
    ),
    wait: options.Wait = False,
    stream: bool = flag("--stream", "Print the pieces of one input's result while they come."),
    timeout: options.Timeout = None,
    target: Path | None = option(
        "--output -o FILE", "Append a JSON line per input to FILE as its job ends; implies --wait."
    ),
    resume: bool = flag("--resume", "Continue FILE: skip inputs that succeeded in it."),
    ordered: bool = flag("--ordered", "Print results in the order of the inputs."),
    in_flight: int = option(
        "--in-flight N",
        f"Maximum number of jobs in flight with --wait (default: {IN_FLIGHT}).",
        IN_FLIGHT,
        min=1,
        max=IN_FLIGHT_MAX,
    ),
    job_id: str | None = option("--id ID", "Job id for a single input (default: a new id)."),
    content_type: options.ContentType = None,
    version: options.Version = None,
    param: options.Param = None,
    priority: int | None = option(
        "--priority N", "Priority, 0 (first) to 9 (batch) (default: 0).", min=0, max=9
    ),
    expires: float | None = option(
        "--expires SECONDS", "Expire the job if it has not started within SECONDS (default: never)."
    ),
    countdown: float | None = option(
        "--countdown SECONDS", "Delay before the job joins the queue (default: 0)."
    ),
    job_timeout: float | None = option(
        "--job-timeout SECONDS", "Maximum run time of a job (default: the model's)."
    ),
    result_ttl: int | None = option(
        "--result-ttl SECONDS", "How long the server keeps the result (default: one day)."
    ),
    max_retries: options.MaxRetries = None,
    retry_backoff: float | None = option(
        "--retry-backoff SECONDS", "Maximum wait before the first retry (default: the model's)."
    ),
    retry_backoff_max: float | None = option(
        "--retry-backoff-max SECONDS", "Maximum wait before any retry (default: the model's)."
    ),
    metadata: str | None = option("--metadata JSON", "JSON object that is returned with the job."),
    webhook: str | None = option("--webhook URL", "URL to notify when each job ends."),
    webhook_event: list[str] | None = option(
        "--webhook-event EVENT",
        "Event to notify: started, succeeded, failed, cancelled or expired; repeatable "
        "(default: every end).",
    ),
    retry: float = options.retry("is unreachable or its queue is full", RETRY_S),
    quiet: bool = flag("--quiet -q", "Print no progress bar and no summary."),
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Submit inputs to a model; print the job ids, or with --wait the results."""
    arguments = inputs or []
    sources = Sources(
        arguments, json_input or (), text or (),
        sys.stdin.buffer if STDIN in arguments else None, stdin_as, input_ref or (),
    )  # fmt: skip
    if resume and target is None:
        raise typer.BadParameter("--resume requires --output FILE", param_hint="--resume")
    if job_id is not None and not sources.single:
        raise typer.BadParameter("--id can only be used with one input", param_hint="--id")
    if stream and (not sources.single or target is not None or as_json):
        raise typer.BadParameter(
            "--stream takes one input, without --output and --json", param_hint="--stream"
        )
    job_options = {
        "priority": priority, "expires": expires, "countdown": countdown, "timeout": job_timeout,
        "result_ttl": result_ttl, "max_retries": max_retries, "retry_backoff": retry_backoff,
        "retry_backoff_max": retry_backoff_max, "metadata": options.json_object(metadata),
        "webhook": webhook, "webhook_events": webhook_event or None,
    }  # fmt: skip
    options.checked_id(job_id)
    checked = options.checked_options(job_options)
    with contextlib.ExitStack() as stack:
        file = None
        if target is not None:
            file = stack.enter_context(ResumeFile(target, resume=resume))
        client = stack.enter_context(client_of(url, retry_s=retry))
        run = _Run(
            client=client, model=model, sources=sources, file=file,
            tracker=Tracker(sources, file.earlier if file else PreviousRows(), job_id),
            options={"content_type": content_type, "version": version,
                     "parameters": options.parameters(param), **checked},
            wait=wait or timeout is not None or target is not None, timeout_s=timeout,
            stream=stream, ordered=ordered, in_flight=in_flight, as_json=as_json, quiet=quiet,
        )  # fmt: skip
        raise typer.Exit(run.go())


@dataclass(kw_only=True)
class _Run:
    """One run of the command, from the first input to the exit code."""

    client: Client
    model: str
    sources: Sources
    tracker: Tracker
    file: ResumeFile | None
    options: dict[str, Any]
    stream: bool
    wait: bool
    timeout_s: float | None
    ordered: bool
    in_flight: int
    as_json: bool
    quiet: bool

    def __post_init__(self) -> None:
        """Start the clock and the counts, and make the bar."""
        self._started = time.monotonic()
        self._done = self._failed = 0
        quiet = self.quiet or self.sources.single or not self.wait
        self._bar = Bar(self.model, self.sources.count, quiet=quiet)
        self._limits: set[str] = set()
        self._reasons: set[str] = set()
        if not self.quiet:
            self.client.session.on_limit = self._show_limit
            self.client.session.on_waiting = self._show_waiting

    def go(self) -> ExitCode:
        """Run to the end, also after an interrupt; raise HeadraceError if no job was submitted."""
        stops = InterruptHandler(self.timeout_s)
        with stops:
            try:
                with self._bar:
                    for indexed in self._inputs():
                        with stops.shield():
                            self._write(indexed)
            except BrokenPipeError:
                raise
            except (KeyboardInterrupt, Terminated, TimeUp, OSError, errors.HeadraceError) as error:
                stops.ignore()
                sent = self.client.session.reached and not isinstance(error, errors.ModelNotFound)
                if isinstance(error, errors.HeadraceError) and not sent:
                    raise
                return self._stopped(error)
        if not (self.quiet or self.sources.single):
            self._summary()
        return ExitCode.FAILED if self._failed else ExitCode.DONE

    def _show_limit(self, pause: Pause) -> None:
        """Print that the command waits for a limit, once for each limit."""
        if pause.limit not in self._limits and pause.seconds >= LIMIT_SHOWN_S:
            self._limits.add(pause.limit)
            wait = duration(pause.seconds)
            self._bar.message(
                f"a limit refuses jobs now ({pause.limit}), so they wait; the next try is in {wait}"
            )

    def _show_waiting(self, reason: str) -> None:
        """Print why no worker can load the model, once for each reason."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._bar.message(f"the jobs wait for the model {self.model}: {reason}")

    def _inputs(self) -> Iterator[_Indexed]:
        if self.stream:
            return self._streamed()
        return self._outcomes() if self.wait else self._enqueued()

    def _streamed(self) -> Iterator[_Indexed]:
        """Print the pieces of each input's job, or its result if it has none; yield the input."""
        for outcome, number in self._enqueued():
            if outcome.job is None:
                yield outcome, number
                continue
            try:
                self._watch_load(outcome.job)
                if not self._print_pieces(outcome.job):
                    print_result(self.client.result(outcome.job))
            except errors.JobError as error:
                job = self.client.status(outcome.job)
                outcome = replace(outcome, job=job, error=error)
            yield outcome, number

    def _watch_load(self, job: Job) -> None:
        """Wait until a job has begun whose model is not loaded, to print why it cannot be."""
        if job.waiting_for is None:
            return
        for event in self.client.events(job):
            if event.waiting_reason and not self.quiet:
                self._show_waiting(event.waiting_reason)
            if event.name not in ("queued", "scheduled"):
                return

    def _print_pieces(self, job: Job) -> bool:
        """Print the pieces of a job, and return whether it had any."""
        after, line_open, some = "0", False, False
        while True:
            problem: errors.HeadraceError
            try:
                for piece in self.client.stream(job, starting_after=after):
                    some = True
                    text = piece if isinstance(piece, str) else f"{output.json_text(piece)}\n"
                    output.write_text(text)
                    line_open = not text.endswith("\n") if text else line_open
            except errors.StreamRestarted as restarted:
                after, problem = restarted.place, restarted
            except errors.PiecesMissing as missing:
                after, problem = missing.place, missing
            else:
                return some or after != "0"
            finally:
                if line_open:
                    output.line("")
                line_open = False
            output.message(problem.message)

    def _outcomes(self) -> Iterator[_Indexed]:
        """Yield each input once its job has ended."""
        tracker = self.tracker
        results = self.client.map(
            self.model, tracker.values(), ids=tracker.ids(), ordered=self.ordered,
            return_errors=True, in_flight=self.in_flight, **self.options,
        )  # fmt: skip
        for result in results:
            sent = tracker.in_flight[result.index]
            yield from self._invalid_inputs(sent.place if self.ordered else None)
            outcome = WrittenOutcome(sent.key, sent.job_id, result.job, result.value, result.error)
            yield outcome, result.index
        yield from self._invalid_inputs(None)

    def _enqueued(self) -> Iterator[_Indexed]:
        """Yield each input once its job is enqueued, in the order of the inputs."""
        tracker = self.tracker
        accepted = self.client.submit_many(
            self.model, tracker.values(), ids=tracker.ids(), **self.options
        )
        for number, answer in enumerate(accepted):
            sent = tracker.in_flight[number]
            yield from self._invalid_inputs(sent.place)
            refused = answer if isinstance(answer, Exception) else None
            job = None if isinstance(answer, Exception) else answer
            yield WrittenOutcome(sent.key, sent.job_id, job, error=refused), number
        yield from self._invalid_inputs(None)

    def _invalid_inputs(self, before: int | None) -> Iterator[_Indexed]:
        for sent, error in self.tracker.invalid(before):
            yield WrittenOutcome(sent.key, sent.job_id, error=error), None

    def _write(self, indexed: _Indexed) -> None:
        outcome, number = indexed
        if isinstance(outcome.error, errors.ModelNotFound):
            raise outcome.error  # every other input would fail too
        if isinstance(outcome.error, errors.BrokerError):
            raise outcome.error  # the same; whether a job exists is unknown
        self._print(outcome)
        if number is not None:
            del self.tracker.in_flight[number]
        if outcome.error is None:
            self._done += 1
        else:
            self._failed += 1
        self._bar.update(self._done + self._failed, self._failed)

    def _print(self, outcome: WrittenOutcome) -> None:
        """Write an outcome to the file, or print it as JSON, as a result or as a job id."""
        if self.file is not None:
            self.file.write(record(outcome))
            if outcome.error is not None and self._failed < FAILURES_SHOWN:
                self._bar.message(explain(outcome))
            elif outcome.error is not None and self._failed == FAILURES_SHOWN:
                self._bar.message(f"for further failures see {self.file.path}")
        elif self.as_json:
            output.json_line(record(outcome))
        elif outcome.error is not None:
            self._bar.message(explain(outcome))
        elif outcome.job is not None:
            self._print_text(outcome, outcome.job)

    def _print_text(self, outcome: WrittenOutcome, job: Job) -> None:
        alone = self.sources.single
        if self.stream:
            return  # its pieces are printed
        if not self.wait:
            keys = sys.stdout.isatty() and not alone
            output.line(f"{job.id}  {outcome.key}" if keys else job.id)
        elif not job.ended:
            return  # the command lists jobs in flight when it ends
        elif alone:
            print_result(outcome.value)
        else:
            text = f"{outcome.key}: {output.result_line(job.result, outcome.value)}"
            self._bar.print_result(text)

    def _stopped(self, error: BaseException) -> ExitCode:
        """Print why the command has ended, and which jobs may still run."""
        code, reason = stop_reason(error, "the results")
        output.message(reason)
        if isinstance(error, TimeUp) and not self._done:
            output.message(f"`headrace models {self.model}` shows if the model is loaded")
        in_flight = list(self.tracker.in_flight.values())
        progress = f"done: {self._done + self._failed:,}, in flight: {len(in_flight):,}"
        if self._write_in_flight(in_flight) and self.file is not None:
            output.message(
                f"{progress}; see {self.file.path}. "
                "Jobs that were accepted continue; resume with the same command and --resume"
            )
        elif in_flight:
            output.message(f"{progress}. Jobs that were accepted continue; get their results with:")
            _print_ids([job.job_id for job in in_flight])
        else:
            output.message(progress)
        return code

    def _write_in_flight(self, in_flight: list[SubmittedJob]) -> bool:
        """Write the jobs in flight to the output; return whether that is possible."""
        if self.file is None and not self.as_json:
            return False
        try:
            for job in in_flight:
                self._print(WrittenOutcome(job.key, job.job_id))
        except OSError:  # for example the full disk that ended the command
            return False
        return True

    def _summary(self) -> None:
        seconds = time.monotonic() - self._started
        tracker, total = self.tracker, self._done + self._failed
        parts = [f"{self._done:,} {'succeeded' if self.wait else 'submitted'}"]
        if self._failed:
            parts.append(f"{self._failed:,} failed")
        if tracker.already_done:
            parts.append(f"{tracker.already_done:,} already done")
        speed = f" ({rate(total / seconds)})" if seconds >= 1 else ""
        where = f"; see {self.file.path}" if self.file else ""
        output.message(f"{', '.join(parts)} in {seconds:.1f} s{speed}{where}")
        if self.file is not None and self.as_json:
            output.json_line({
                "succeeded": self._done, "failed": self._failed,
                "done_before": tracker.already_done, "output": str(self.file.path),
            })  # fmt: skip


def _print_ids(ids: list[str]) -> None:
    if len(ids) <= IDS_IN_A_COMMAND:
        output.message(f"headrace result --wait {' '.join(ids)}")
        return
    output.message("headrace result --wait - < IDS, with the following lines in the file IDS")
    for job_id in ids:
        typer.echo(job_id, err=True)


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """An input that the client has taken; `place` is its index among all inputs, from 0."""

    place: int
    key: str
    job_id: str


class Tracker:
    """Gives inputs to the client and keeps those whose outcome is not written yet.

    Holds as many inputs as the client has taken. The client may take them in another thread.

    Args:
        job_id: the id of a single input, if the user chose one.

    Attributes:
        in_flight: the inputs whose outcome is not written, by the client's index. Some may not have
            been sent yet.
        already_done: number of inputs that earlier commands finished.
    """

    def __init__(
        self, inputs: Iterable[Input], earlier: PreviousRows, job_id: str | None = None
    ) -> None:
        self._inputs = inputs
        self._earlier = earlier
        self._job_id = job_id
        self.in_flight: dict[int, SubmittedJob] = {}
        self._ids: deque[str] = deque()
        self._invalid: deque[tuple[SubmittedJob, errors.HeadraceError]] = deque()
        self.already_done = 0

    def values(self) -> Iterator[Any]:
        """Yield the inputs for the client."""
        number = 0
        for place, one in enumerate(self._inputs):
            if self._earlier.is_done(one.key):
                self.already_done += 1
                continue
            job_id = self._job_id or self._earlier.id_of(one.key) or new_id()
            sent = SubmittedJob(place, one.key, job_id)
            if isinstance(one.value, errors.HeadraceError):
                self._invalid.append((sent, one.value))
                continue
            self.in_flight[number] = sent
            self._ids.append(job_id)
            number += 1
            yield one.value

    def ids(self) -> Iterator[str]:
        """Yield the job ids of `values`, in the same order."""
        while True:
            yield self._ids.popleft()

    def invalid(
        self, before: int | None = None
    ) -> Iterator[tuple[SubmittedJob, errors.HeadraceError]]:
        """Yield inputs that cannot be read, each once; with `before`, only those before it."""
        while self._invalid and (before is None or self._invalid[0][0].place < before):
            yield self._invalid.popleft()
