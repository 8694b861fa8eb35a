"""Writers for the outcomes of `headrace submit`: text, JSON lines, or a file of JSON lines."""

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

#: Number of failures that are also printed if a file has all of them.
FAILURES_SHOWN: Final = 10
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class WrittenOutcome:
    """The outcome of one input.

    Attributes:
        key: the input's name for the user.
        job_id: the id with which the input was, or may have been, submitted.
        job: the job; None if there is no job, or its end is unknown.
        value: the decoded result.
        error: why there is no result, if that is known.
    """

    key: str
    job_id: str
    job: Job | None = None
    value: Any = None
    error: Exception | None = None

    @property
    def status(self) -> str:
        """Return the job's status, `rejected`, `unknown` or `submitted`."""
        if self.job is not None:
            # `--resume` must not treat this input as done.
            return UNKNOWN if self.job.succeeded and self.error is not None else self.job.status
        if self.error is None:
            return SUBMITTED
        return UNKNOWN if isinstance(self.error, errors.JobNotFound) else REJECTED

    @property
    def failed(self) -> bool:
        """Return whether the input is known to have no result."""
        return self.error is not None


class ResultWriter(Protocol):
    """Writes each outcome as it arrives."""

    def write(self, outcome: WrittenOutcome) -> None:
        """Write an outcome."""


class JsonWriter:
    """Writes JSON lines to standard output."""

    def write(self, outcome: WrittenOutcome) -> None:
        """Write a line."""
        output.json_line(record(outcome))


class JsonFileWriter:
    """Writes outcomes as JSON lines to a file; prints the first FAILURES_SHOWN failures too."""

    def __init__(self, file: ResumeFile, bar: Bar) -> None:
        self._file = file
        self._bar = bar
        self._failed = 0

    def write(self, outcome: WrittenOutcome) -> None:
        """Append a line."""
        self._file.write(record(outcome))
        if not outcome.failed:
            return
        self._failed += 1
        if self._failed <= FAILURES_SHOWN:
            self._bar.message(explain(outcome))
        elif self._failed == FAILURES_SHOWN + 1:
            self._bar.message(f"for further failures see {self._file.path}")


class TextWriter:
    """Writes results as text: a single result alone, several results after their keys."""

    def __init__(self, bar: Bar, *, alone: bool) -> None:
        self._bar = bar
        self._alone = alone

    def write(self, outcome: WrittenOutcome) -> None:
        """Print the result, or the error."""
        if outcome.error is not None:
            self._bar.message(explain(outcome))
        elif outcome.job is None or not outcome.job.ended:
            return  # the command lists jobs in flight when it ends
        elif self._alone:
            print_result(outcome.value)
        else:
            text = f"{outcome.key}: {output.result_line(outcome.job.result, outcome.value)}"
            self._bar.print_result(text)


class IdWriter:
    """Writes the ids of accepted jobs; on a terminal with their keys."""

    def __init__(self, *, keys: bool) -> None:
        self._keys = keys

    def write(self, outcome: WrittenOutcome) -> None:
        """Print the id, or the error."""
        if outcome.error is not None:
            output.message(explain(outcome))
        elif outcome.job is not None:
            output.line(f"{outcome.job.id}  {outcome.key}" if self._keys else outcome.job.id)


@dataclass
class OutcomeCounts:
    """Counts of outcomes."""

    counts: Counter[str]

    @property
    def exit_code(self) -> ExitCode:
        """Return 0 if all succeeded, else 1."""
        return ExitCode.FAILED if self.failed else ExitCode.DONE

    @property
    def failed(self) -> int:
        """Return the number of inputs without a result."""
        return self.counts["failed"]

    @property
    def total(self) -> int:
        """Return the number of all outcomes."""
        return self.counts.total()

    @property
    def done(self) -> int:
        """Return the number of inputs with a result; without --wait, of accepted jobs."""
        return self.counts["done"]

    def add(self, outcome: WrittenOutcome) -> None:
        """Count an outcome."""
        self.counts["failed" if outcome.failed else "done"] += 1


def record(outcome: WrittenOutcome) -> dict[str, Any]:
    """Return the JSON object of an outcome."""
    has_job = outcome.status != REJECTED
    line: dict[str, Any] = {
        "key": outcome.key,
        "id": outcome.job_id if has_job else None,
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
    """Return why there is no result, on one line."""
    error = outcome.error
    text = output.error_text(error) if isinstance(error, errors.HeadraceError) else _reason(error)
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
