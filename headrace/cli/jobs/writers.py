"""Where the outcomes of `headrace submit` go: lines for people, JSON lines, or a file of them."""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace import errors
from headrace.cli.jobs.results import print_result
from headrace.cli.jobs.resume_file import REJECTED, SUBMITTED, ResumeFile
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.progress_bar import Bar

if TYPE_CHECKING:
    from headrace.client.models import Job

#: Failures that are printed where a file has them all.
FAILURES_SHOWN: Final = 10
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class WrittenOutcome:
    """What came of one input.

    Attributes:
        key: what the user knows it by.
        job_id: the id under which it was, or may have been, submitted.
        job: the job as it is known; None where there is none, or its end is not known.
        value: the decoded result.
        error: why there is no result, where that is known.
    """

    key: str
    job_id: str
    job: Job | None = None
    value: Any = None
    error: Exception | None = None

    @property
    def status(self) -> str:
        """The job's status, `rejected`, `unknown`, or `submitted`."""
        if self.job is not None:
            # Whoever goes on with the file must not take it for done.
            return UNKNOWN if self.job.succeeded and self.error is not None else self.job.status
        if self.error is None:
            return SUBMITTED
        return UNKNOWN if isinstance(self.error, errors.JobNotFound) else REJECTED

    @property
    def failed(self) -> bool:
        """Whether it is known to have no result."""
        return self.error is not None


class ResultWriter(Protocol):
    """Takes each outcome as it comes."""

    def take(self, outcome: WrittenOutcome) -> None:
        """Write it."""


class JsonWriter:
    """JSON lines on standard output."""

    def take(self, outcome: WrittenOutcome) -> None:
        """Write a line."""
        output.json_line(record(outcome))


class FileWriter:
    """JSON lines in a file; of failures, the first few are told to people as well."""

    def __init__(self, file: ResumeFile, bar: Bar) -> None:
        self._file = file
        self._bar = bar
        self._failed = 0

    def take(self, outcome: WrittenOutcome) -> None:
        """Append a line."""
        self._file.write(record(outcome))
        if not outcome.failed:
            return
        self._failed += 1
        if self._failed <= FAILURES_SHOWN:
            self._bar.say(explain(outcome))
        elif self._failed == FAILURES_SHOWN + 1:
            self._bar.say(f"more failures: see {self._file.path}")


class TextWriter:
    """Results for people: alone as it is, of several each behind its key, as grep does it."""

    def __init__(self, bar: Bar, *, alone: bool) -> None:
        self._bar = bar
        self._alone = alone

    def take(self, outcome: WrittenOutcome) -> None:
        """Print the result, or why there is none."""
        if outcome.error is not None:
            self._bar.say(explain(outcome))
        elif outcome.job is None or not outcome.job.ended:
            return  # the end of the run says what becomes of it
        elif self._alone:
            print_result(outcome.value)
        else:
            text = f"{outcome.key}: {output.short(outcome.job.result, outcome.value)}"
            self._bar.print_result(text)


class IdWriter:
    """Ids of jobs that were accepted; on a terminal with what each is of."""

    def __init__(self, *, keys: bool) -> None:
        self._keys = keys

    def take(self, outcome: WrittenOutcome) -> None:
        """Print the id, or why there is none."""
        if outcome.error is not None:
            output.say(explain(outcome))
        elif outcome.job is not None:
            output.line(f"{outcome.job.id}  {outcome.key}" if self._keys else outcome.job.id)


@dataclass
class OutcomeCounts:
    """How many ended how."""

    counts: Counter[str]

    @property
    def exit_code(self) -> ExitCode:
        """0 where all succeeded."""
        return ExitCode.FAILED if self.failed else ExitCode.DONE

    @property
    def failed(self) -> int:
        """Inputs that are known to have no result."""
        return self.counts["failed"]

    @property
    def total(self) -> int:
        """All that came back."""
        return self.counts.total()

    @property
    def done(self) -> int:
        """Inputs with a result; without waiting, those that were accepted."""
        return self.counts["done"]

    def add(self, outcome: WrittenOutcome) -> None:
        """Count one."""
        self.counts["failed" if outcome.failed else "done"] += 1


def record(outcome: WrittenOutcome) -> dict[str, Any]:
    """The JSON of an outcome."""
    made = outcome.status != REJECTED
    line: dict[str, Any] = {
        "key": outcome.key,
        "id": outcome.job_id if made else None,
        "status": outcome.status,
    }
    if outcome.error is not None:
        line["error"] = _error(outcome)
    elif outcome.job is not None and outcome.job.succeeded:
        line["result"] = _result(outcome)
    if outcome.job is not None and outcome.job.timings is not None:
        line["timings"] = outcome.job.timings
    return line


def explain(outcome: WrittenOutcome) -> str:
    """Why there is no result, for people."""
    error = outcome.error
    text = output.advice(error) if isinstance(error, errors.HeadraceError) else _reason(error)
    status = "" if outcome.status in (REJECTED, UNKNOWN) else f"{outcome.status}: "
    return f"{outcome.key}: {status}{' '.join(text.split())}"


def _error(outcome: WrittenOutcome) -> dict[str, Any]:
    error = outcome.error
    known = error if isinstance(error, errors.HeadraceError) else errors.InvalidRequest("")
    return {"type": known.code, "message": _reason(error), "retryable": known.retryable}


def _reason(error: Exception | None) -> str:
    if isinstance(error, errors.HeadraceError):
        return error.message
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error)


def _result(outcome: WrittenOutcome) -> Any:
    if outcome.job is not None and outcome.job.result is not None:
        return outcome.job.result
    if isinstance(outcome.value, bytes):
        text = base64.b64encode(outcome.value).decode()
        return {"content_type": "application/octet-stream", "base64": text}
    return outcome.value
