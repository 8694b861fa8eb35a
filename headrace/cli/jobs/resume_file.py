"""The file of `headrace submit -o`: one JSON line per input; `--resume` continues it.

A line is appended when its job ends, and never changed. The last line of a key counts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, Self

import msgspec
import typer

#: The job was submitted, and the command ended before the job did.
SUBMITTED: Final = "submitted"
#: The input was refused; there is no job.
REJECTED: Final = "rejected"
_SUCCEEDED: Final = "succeeded"
_START: Final = b'{"key":"'
_KEY_BYTES: Final = 16


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
        self._done: set[bytes] = set()
        self._ids: dict[bytes, str] = {}

    def add(self, line: _Line) -> None:
        """Add a line; it replaces earlier lines of its key."""
        digest = _digest(line.key)
        self._done.discard(digest)
        self._ids.pop(digest, None)
        if line.status == _SUCCEEDED:
            self._done.add(digest)
        elif line.status == SUBMITTED and line.id:
            self._ids[digest] = line.id

    def is_done(self, key: str) -> bool:
        """Return whether the file has a result for this input."""
        return _digest(key) in self._done

    def id_of(self, key: str) -> str | None:
        """Return the id of this input's job if its outcome is not in the file."""
        return self._ids.get(_digest(key))


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
            self._file.write(self._encoder.encode(record) + b"\n")
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
