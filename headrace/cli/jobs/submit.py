"""`headrace submit`: inputs in, ids or outcomes out.

Whatever ends the run before its jobs, their ids are told: nothing that was accepted is lost.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import typer

from headrace import errors
from headrace.cli.jobs.resume_file import PreviousRows, ResumeFile
from headrace.cli.jobs.tracker import SubmittedJob, Tracker
from headrace.cli.jobs.writers import (
    FileWriter,
    IdWriter,
    JsonWriter,
    OutcomeCounts,
    ResultWriter,
    TextWriter,
    WrittenOutcome,
)
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode, exit_code
from headrace.cli.shared.inputs import Sources
from headrace.cli.shared.interrupts import InterruptHandler, Terminated, TimeUp
from headrace.cli.shared.progress_bar import Bar

if TYPE_CHECKING:
    from headrace import Client

#: Ids that are given in one command to paste; more are listed.
IDS_IN_A_COMMAND: Final = 20
#: An outcome, and the number under which the client took its input; None where it never did.
_Taken: TypeAlias = tuple[WrittenOutcome, int | None]


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """What is asked of `headrace submit`.

    Attributes:
        model: the model.
        sources: the inputs.
        options: of every job, and `version` and `content_type`; None takes the default.
        job_id: the id of the only input.
        wait: wait for the outcomes.
        timeout_s: how long, in all; None without end.
        ordered: outcomes in the order of the inputs.
        in_flight: how many jobs may be under way at once.
        retry_s: how long a server may be away.
        file: for the outcomes.
        resume: go on with that file.
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


def submit(url: str | None, what: SubmitRequest) -> ExitCode:
    """Submit, and wait where that is asked for."""
    from headrace import Client

    with contextlib.ExitStack() as stack:
        file = None
        if what.file is not None:
            file = stack.enter_context(ResumeFile(what.file, resume=what.resume))
        client = stack.enter_context(Client(url, retry_s=what.retry_s))
        tracker = Tracker(what.sources, file.earlier if file else PreviousRows(), what.job_id)
        run = _Run(client, what, tracker, file)
        return run.go()


class _Run:
    """One run, from the first input to the exit code."""

    def __init__(
        self, client: Client, what: SubmitRequest, tracker: Tracker, file: ResumeFile | None
    ) -> None:
        self._client = client
        self._what = what
        self._tracker = tracker
        self._file = file
        self._started = time.monotonic()
        self._tally = OutcomeCounts(Counter())
        alone = what.sources.single
        self._bar = Bar(what.model, what.sources.count, quiet=what.quiet or alone or not what.wait)
        self._sink = _sink(what, self._bar, file)

    def go(self) -> ExitCode:
        """Run to the end, whatever ends it.

        Raises:
            HeadraceError: no job was made of anything.
        """
        stops = InterruptHandler(self._what.timeout_s)
        with stops:
            try:
                with self._bar:
                    for taken in self._waited() if self._what.wait else self._accepted():
                        with stops.shield():
                            self._take(taken)
            except BrokenPipeError:
                raise
            except (KeyboardInterrupt, Terminated, TimeUp, OSError, errors.HeadraceError) as error:
                stops.ignore()
                if isinstance(error, errors.HeadraceError) and not self._anything_sent(error):
                    raise
                return self._stopped(error)
        if not (self._what.quiet or self._what.sources.single):
            self._summary()
        return self._tally.exit_code

    def _waited(self) -> Iterator[_Taken]:
        """Each input once its job has ended."""
        what, tracker = self._what, self._tracker
        results = self._client.map(
            what.model, tracker.values(), ids=tracker.ids(), ordered=what.ordered,
            return_errors=True, in_flight=what.in_flight, **what.options,
        )  # fmt: skip
        for result in results:
            sent = tracker.sent(result.index)
            yield from self._unsendable(sent.place if what.ordered else None)
            outcome = WrittenOutcome(sent.key, sent.job_id, result.job, result.value, result.error)
            yield outcome, result.index
        yield from self._unsendable(None)

    def _accepted(self) -> Iterator[_Taken]:
        """Each input once its job is enqueued, in the order of the inputs."""
        what, tracker = self._what, self._tracker
        accepted = self._client.submit_many(
            what.model, tracker.values(), ids=tracker.ids(), **what.options
        )
        for number, answer in enumerate(accepted):
            sent = tracker.sent(number)
            yield from self._unsendable(sent.place)
            refused = answer if isinstance(answer, Exception) else None
            job = None if isinstance(answer, Exception) else answer
            yield WrittenOutcome(sent.key, sent.job_id, job, error=refused), number
        yield from self._unsendable(None)

    def _unsendable(self, before: int | None) -> Iterator[_Taken]:
        for sent, error in self._tracker.bad(before):
            yield WrittenOutcome(sent.key, sent.job_id, error=error), None

    def _take(self, taken: _Taken) -> None:
        """Write an outcome, and note that it is written."""
        outcome, number = taken
        if isinstance(outcome.error, errors.ModelNotFound):
            raise outcome.error  # as it will be for every other input
        if isinstance(outcome.error, errors.BrokerError):
            raise outcome.error  # the same, and whether there is a job is not known
        self._sink.take(outcome)
        if number is not None:
            self._tracker.came_back(number)
        self._tally.add(outcome)
        self._bar.advance(failed=outcome.failed)

    def _anything_sent(self, error: errors.HeadraceError) -> bool:
        return self._client.session.met and not isinstance(error, errors.ModelNotFound)

    def _stopped(self, error: BaseException) -> ExitCode:
        """Tell why, and what is under way."""
        code, why = _reason(error)
        output.say(why)
        left = self._tracker.left()
        counts = f"done: {self._tally.total:,}, under way: {len(left):,}"
        if self._note(left) and self._file is not None:
            output.say(
                f"{counts}; see {self._file.path}. "
                "What is under way goes on; the same command with --resume goes on from here"
            )
        elif left:
            output.say(f"{counts}. What is under way goes on; to pick it up:")
            _tell_ids([sent.job_id for sent in left])
        else:
            output.say(counts)
        return code

    def _note(self, left: list[SubmittedJob]) -> bool:
        """Write what is under way where the outcomes are; whether that is possible."""
        if self._file is None and not self._what.as_json:
            return False
        try:
            for sent in left:
                self._sink.take(WrittenOutcome(sent.key, sent.job_id))
        except OSError:  # such as the full disk that ended the run
            return False
        return True

    def _summary(self) -> None:
        seconds = time.monotonic() - self._started
        tally, tracker = self._tally, self._tracker
        parts = [f"{tally.done:,} {'succeeded' if self._what.wait else 'submitted'}"]
        if tally.failed:
            parts.append(f"{tally.failed:,} failed")
        if tracker.already_done:
            parts.append(f"{tracker.already_done:,} were done before")
        rate = f" ({tally.total / seconds:,.0f} a second)" if seconds >= 1 else ""
        where = f"; see {self._file.path}" if self._file else ""
        output.say(f"{', '.join(parts)} in {seconds:.1f} s{rate}{where}")
        if self._file is not None and self._what.as_json:
            counts = {"succeeded": tally.done, "failed": tally.failed}
            done = {"done_before": tracker.already_done, "output": str(self._file.path)}
            output.json_line({**counts, **done})


def _sink(what: SubmitRequest, bar: Bar, file: ResumeFile | None) -> ResultWriter:
    if file is not None:
        return FileWriter(file, bar)
    if what.as_json:
        return JsonWriter()
    if what.wait:
        return TextWriter(bar, alone=what.sources.single)
    return IdWriter(keys=sys.stdout.isatty() and not what.sources.single)


def _reason(error: BaseException) -> tuple[ExitCode, str]:
    if isinstance(error, errors.HeadraceError):
        return exit_code(error), output.advice(error)
    if isinstance(error, OSError):
        return ExitCode.FAILED, f"the results cannot be written: {error.strerror or error}"
    if isinstance(error, TimeUp):
        return ExitCode.TIMED_OUT, str(error)
    if isinstance(error, Terminated):
        return ExitCode.TERMINATED, f"ended by {error}"
    return ExitCode.INTERRUPTED, "interrupted"


def _tell_ids(ids: list[str]) -> None:
    if len(ids) <= IDS_IN_A_COMMAND:
        output.say(f"headrace result --wait {' '.join(ids)}")
        return
    output.say("headrace result --wait - < IDS, with these lines in the file IDS")
    for job_id in ids:
        typer.echo(job_id, err=True)
