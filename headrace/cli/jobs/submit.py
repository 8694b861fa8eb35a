"""`headrace submit`: submits inputs and prints job ids or outcomes.

If the command ends before its jobs, it prints their ids, so that no accepted job is lost.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import typer

from headrace import errors
from headrace.cli.jobs.resume_file import PreviousRows, ResumeFile
from headrace.cli.jobs.writers import (
    IdWriter,
    JsonFileWriter,
    JsonWriter,
    OutcomeCounts,
    ResultWriter,
    TextWriter,
    WrittenOutcome,
)
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode, exit_code
from headrace.cli.shared.inputs import Input, Sources
from headrace.cli.shared.interrupts import InterruptHandler, Terminated, TimeUp
from headrace.cli.shared.progress_bar import Bar
from headrace.jobs.ids import new_id

if TYPE_CHECKING:
    from headrace import Client

#: At most this many ids are printed as one command to paste; more are listed.
IDS_IN_A_COMMAND: Final = 20
#: An outcome, and the index that the client gave its input; None if it never got the input.
_Indexed: TypeAlias = tuple[WrittenOutcome, int | None]


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """The arguments of `headrace submit`.

    Attributes:
        model: the model.
        sources: the inputs.
        options: options of every job, `version` and `content_type`; None takes the default.
        job_id: the id of a single input.
        wait: wait for the outcomes.
        timeout_s: maximum wait in total; None for no limit.
        ordered: write outcomes in the order of the inputs.
        in_flight: maximum number of jobs in flight.
        retry_s: how long requests are retried while the server is unreachable or full.
        file: the file for the outcomes.
        resume: continue that file.
        as_json: JSON lines on standard output.
        quiet: no bar and no summary.
    """

    model: str
    sources: Sources
    options: dict[str, Any] = field(default_factory=dict)
    job_id: str | None = None
    wait: bool = False
    timeout_s: float | None = None
    ordered: bool = False
    in_flight: int = 1000
    retry_s: float = 60
    file: Path | None = None
    resume: bool = False
    as_json: bool = False
    quiet: bool = False


def submit(url: str | None, request: SubmitRequest) -> ExitCode:
    """Submit the inputs; with `wait`, wait for the outcomes."""
    from headrace import Client

    with contextlib.ExitStack() as stack:
        file = None
        if request.file is not None:
            file = stack.enter_context(ResumeFile(request.file, resume=request.resume))
        client = stack.enter_context(Client(url, retry_s=request.retry_s))
        tracker = Tracker(request.sources, file.earlier if file else PreviousRows(), request.job_id)
        run = _Run(client, request, tracker, file)
        return run.go()


class _Run:
    """One run of the command, from the first input to the exit code."""

    def __init__(
        self, client: Client, request: SubmitRequest, tracker: Tracker, file: ResumeFile | None
    ) -> None:
        self._client = client
        self._request = request
        self._tracker = tracker
        self._file = file
        self._started = time.monotonic()
        self._counts = OutcomeCounts(Counter())
        alone = request.sources.single
        self._bar = Bar(
            request.model, request.sources.count, quiet=request.quiet or alone or not request.wait
        )
        self._writer = _writer(request, self._bar, file)

    def go(self) -> ExitCode:
        """Run the command to its end, also after an interrupt.

        Raises:
            HeadraceError: no job was submitted.
        """
        stops = InterruptHandler(self._request.timeout_s)
        with stops:
            try:
                with self._bar:
                    for indexed in self._outcomes() if self._request.wait else self._enqueued():
                        with stops.shield():
                            self._write(indexed)
            except BrokenPipeError:
                raise
            except (KeyboardInterrupt, Terminated, TimeUp, OSError, errors.HeadraceError) as error:
                stops.ignore()
                if isinstance(error, errors.HeadraceError) and not self._anything_sent(error):
                    raise
                return self._stopped(error)
        if not (self._request.quiet or self._request.sources.single):
            self._summary()
        return self._counts.exit_code

    def _outcomes(self) -> Iterator[_Indexed]:
        """Yield each input once its job has ended."""
        request, tracker = self._request, self._tracker
        results = self._client.map(
            request.model, tracker.values(), ids=tracker.ids(), ordered=request.ordered,
            return_errors=True, in_flight=request.in_flight, **request.options,
        )  # fmt: skip
        for result in results:
            sent = tracker.sent(result.index)
            yield from self._invalid_inputs(sent.place if request.ordered else None)
            outcome = WrittenOutcome(sent.key, sent.job_id, result.job, result.value, result.error)
            yield outcome, result.index
        yield from self._invalid_inputs(None)

    def _enqueued(self) -> Iterator[_Indexed]:
        """Yield each input once its job is enqueued, in the order of the inputs."""
        request, tracker = self._request, self._tracker
        accepted = self._client.submit_many(
            request.model, tracker.values(), ids=tracker.ids(), **request.options
        )
        for number, answer in enumerate(accepted):
            sent = tracker.sent(number)
            yield from self._invalid_inputs(sent.place)
            refused = answer if isinstance(answer, Exception) else None
            job = None if isinstance(answer, Exception) else answer
            yield WrittenOutcome(sent.key, sent.job_id, job, error=refused), number
        yield from self._invalid_inputs(None)

    def _invalid_inputs(self, before: int | None) -> Iterator[_Indexed]:
        for sent, error in self._tracker.invalid(before):
            yield WrittenOutcome(sent.key, sent.job_id, error=error), None

    def _write(self, indexed: _Indexed) -> None:
        """Write an outcome and mark its input as written."""
        outcome, number = indexed
        if isinstance(outcome.error, errors.ModelNotFound):
            raise outcome.error  # every other input would fail too
        if isinstance(outcome.error, errors.BrokerError):
            raise outcome.error  # the same; whether a job exists is unknown
        self._writer.write(outcome)
        if number is not None:
            self._tracker.mark_written(number)
        self._counts.add(outcome)
        self._bar.advance(failed=outcome.failed)

    def _anything_sent(self, error: errors.HeadraceError) -> bool:
        return self._client.session.reached and not isinstance(error, errors.ModelNotFound)

    def _stopped(self, error: BaseException) -> ExitCode:
        """Print reason the command ended, and which jobs are still in flight."""
        code, reason = _reason(error)
        output.message(reason)
        in_flight = self._tracker.in_flight()
        progress = f"done: {self._counts.total:,}, in flight: {len(in_flight):,}"
        if self._write_in_flight(in_flight) and self._file is not None:
            output.message(
                f"{progress}; see {self._file.path}. "
                "The jobs in flight continue; resume with the same command and --resume"
            )
        elif in_flight:
            output.message(f"{progress}. The jobs in flight continue; get their results with:")
            _print_ids([job.job_id for job in in_flight])
        else:
            output.message(progress)
        return code

    def _write_in_flight(self, in_flight: list[SubmittedJob]) -> bool:
        """Write the jobs in flight to the output; return whether that is possible."""
        if self._file is None and not self._request.as_json:
            return False
        try:
            for job in in_flight:
                self._writer.write(WrittenOutcome(job.key, job.job_id))
        except OSError:  # for example the full disk that ended the command
            return False
        return True

    def _summary(self) -> None:
        seconds = time.monotonic() - self._started
        counts, tracker = self._counts, self._tracker
        parts = [f"{counts.done:,} {'succeeded' if self._request.wait else 'submitted'}"]
        if counts.failed:
            parts.append(f"{counts.failed:,} failed")
        if tracker.already_done:
            parts.append(f"{tracker.already_done:,} already done")
        rate = f" ({counts.total / seconds:,.0f} per second)" if seconds >= 1 else ""
        where = f"; see {self._file.path}" if self._file else ""
        output.message(f"{', '.join(parts)} in {seconds:.1f} s{rate}{where}")
        if self._file is not None and self._request.as_json:
            output.json_line({
                "succeeded": counts.done, "failed": counts.failed,
                "done_before": tracker.already_done, "output": str(self._file.path),
            })  # fmt: skip


def _writer(request: SubmitRequest, bar: Bar, file: ResumeFile | None) -> ResultWriter:
    if file is not None:
        return JsonFileWriter(file, bar)
    if request.as_json:
        return JsonWriter()
    if request.wait:
        return TextWriter(bar, alone=request.sources.single)
    return IdWriter(keys=sys.stdout.isatty() and not request.sources.single)


def _reason(error: BaseException) -> tuple[ExitCode, str]:
    if isinstance(error, errors.HeadraceError):
        return exit_code(error), output.error_text(error)
    if isinstance(error, OSError):
        return ExitCode.FAILED, f"the results cannot be written: {error.strerror or error}"
    if isinstance(error, TimeUp):
        return ExitCode.TIMED_OUT, str(error)
    if isinstance(error, Terminated):
        return ExitCode.TERMINATED, f"ended by {error}"
    return ExitCode.INTERRUPTED, "interrupted"


def _print_ids(ids: list[str]) -> None:
    if len(ids) <= IDS_IN_A_COMMAND:
        output.message(f"headrace result --wait {' '.join(ids)}")
        return
    output.message("headrace result --wait - < IDS, with the following lines in the file IDS")
    for job_id in ids:
        typer.echo(job_id, err=True)


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """An input that the client has taken.

    Attributes:
        place: its index among all inputs, from 0.
        key: the input's name for the user.
        job_id: the id of its job.
    """

    place: int
    key: str
    job_id: str


class Tracker:
    """Gives inputs to the client and keeps those whose outcome is not written yet.

    Holds as many inputs as the client has taken. The client may take them in another thread.

    Args:
        inputs: all inputs.
        earlier: the rows of earlier commands.
        job_id: the id of a single input, if the user chose one.
    """

    def __init__(
        self, inputs: Iterable[Input], earlier: PreviousRows, job_id: str | None = None
    ) -> None:
        self._inputs = inputs
        self._earlier = earlier
        self._job_id = job_id
        self._in_flight: dict[int, SubmittedJob] = {}
        self._ids: deque[str] = deque()
        self._invalid: deque[tuple[SubmittedJob, errors.HeadraceError]] = deque()
        self.already_done = 0
        self.all_taken = False

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
            self._in_flight[number] = sent
            self._ids.append(job_id)
            number += 1
            yield one.value
        self.all_taken = True

    def ids(self) -> Iterator[str]:
        """Yield the job ids of `values`, in the same order."""
        while True:
            yield self._ids.popleft()

    def sent(self, number: int) -> SubmittedJob:
        """Return the input with the client's index `number`; its outcome is not written yet."""
        return self._in_flight[number]

    def mark_written(self, number: int) -> None:
        """Forget an input whose outcome is written."""
        del self._in_flight[number]

    def invalid(
        self, before: int | None = None
    ) -> Iterator[tuple[SubmittedJob, errors.HeadraceError]]:
        """Yield inputs that cannot be read, each once; with `before`, only those before it."""
        while self._invalid and (before is None or self._invalid[0][0].place < before):
            yield self._invalid.popleft()

    def in_flight(self) -> list[SubmittedJob]:
        """Return the inputs whose outcome is not written. Some may not have been sent yet."""
        return list(self._in_flight.values())
