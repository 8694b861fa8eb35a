"""The outcomes of `headrace submit`: one JSON line per input, and the file that `-o` names.

A line is appended to the file when its job ends, and never changed. The last line of a key counts.
`--resume` continues the file.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

import msgspec
import typer

from headrace import errors
from headrace.cli.shared import output
from headrace.jobs.values.encoding import without_line_ends

if TYPE_CHECKING:
    from headrace.client.models import Job

#: The job was submitted, and the command ended before the job did.
SUBMITTED: Final = "submitted"
#: The input was refused; there is no job.
REJECTED: Final = "rejected"
UNKNOWN: Final = "unknown"
_SUCCEEDED: Final = "succeeded"
_START: Final = b'{"key":"'
_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class WrittenOutcome:
    """The outcome of one input.

    Attributes:
        job_id: the id with which the input was, or may have been, submitted.
        job: the job; None if there is no job, or its end is unknown.
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


def record(outcome: WrittenOutcome) -> dict[str, Any]:
    """Return the JSON object of an outcome."""
    job_id = None if outcome.status == REJECTED else outcome.job_id
    line: dict[str, Any] = {"key": outcome.key, "id": job_id, "status": outcome.status}
    if outcome.error is not None:
        error = outcome.error
        known = error if isinstance(error, errors.HeadraceError) else errors.InvalidRequest("")
        reason = {"type": known.code, "message": _reason(error), "retryable": known.retryable}
        line["error"] = reason
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
    see = "" if outcome.job is None else f"; see headrace jobs {outcome.job_id}"
    return f"{outcome.key}: {status}{' '.join(text.split())}{see}"


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


class _Line(msgspec.Struct):
    """The fields of a line that `--resume` needs."""

    key: str
    status: str
    id: str | None = None


class PreviousRows:
    """The rows that earlier commands wrote: finished inputs, and jobs whose result is missing.

    Takes about 120 bytes per finished input, for keys and results of any length.
    """

    def __init__(self) -> None:
        # The id of the job whose result is missing; empty for a finished input.
        self._ids: dict[bytes, str] = {}

    def add(self, line: _Line) -> None:
        """Add a line; it replaces earlier lines of its key."""
        digest = _digest(line.key)
        self._ids.pop(digest, None)
        if line.status == _SUCCEEDED:
            self._ids[digest] = ""
        elif line.status == SUBMITTED and line.id:
            self._ids[digest] = line.id

    def is_done(self, key: str) -> bool:
        """Return whether the file has a result for this input."""
        return self._ids.get(_digest(key)) == ""

    def id_of(self, key: str) -> str | None:
        """Return the id of this input's job if its outcome is not in the file."""
        return self._ids.get(_digest(key)) or None


class ResumeFile:
    """Appends lines to a file. A context manager that syncs the file to disk at its end.

    Args:
        path: the file; `-` is not supported.
        resume: continue a file that has lines; otherwise the file must be new or empty.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.earlier = PreviousRows()
        self._encoder = msgspec.json.Encoder()
        self._broken = False
        try:
            self._file: IO[bytes] = path.open("ab+")
        except OSError as error:
            raise _bad(f"{path}: cannot be written: {error.strerror}") from None
        try:
            self._open(resume=resume)
        except BaseException:
            self._file.close()
            raise

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line. A crash of this process after the return does not lose it.

        Raises:
            OSError: the disk is full, or the file can no longer be written.
        """
        try:
            self._file.write(without_line_ends(self._encoder.encode(record)) + b"\n")
            self._file.flush()
        except OSError:
            self._broken = True
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with self._file:
                self._file.flush()
                if self.path.is_file():
                    os.fsync(self._file.fileno())
        except OSError:
            # `write` already raised this error; closing the file tries the write again.
            if not self._broken:
                raise

    def _open(self, *, resume: bool) -> None:
        if not self.path.is_file():  # such as /dev/stdout
            return
        if not resume and self._file.tell():
            raise _bad(
                f"{self.path} already has lines; use --resume to continue it, or another file"
            )
        self._file.seek(0)
        good = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n") and _is_cut_off(line):
                break  # the command was killed while writing this line; its input is not done
            good += len(line)
            try:
                self.earlier.add(msgspec.json.decode(line, type=_Line))
            except msgspec.MsgspecError as error:
                raise _bad(
                    f"{self.path}, line {number}: not a line of this command: {error}"
                ) from None
        self._file.truncate(good)


def _is_cut_off(line: bytes) -> bool:
    """Return whether the line is an incomplete line of ours. Nothing else is cut from a file."""
    return line.startswith(_START) or _START.startswith(line)


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=_KEY_BYTES).digest()


def _bad(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--output")
