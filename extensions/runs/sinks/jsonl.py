"""Rows as JSON lines in a local file, in the order in which jobs end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from typing_extensions import override

from extensions.runs.checkpoint_file import LocalCheckpoints, replacing, same_file
from headrace.errors import ConfigError, Conflict
from headrace.jobs.values.encoding import without_line_ends
from headrace.runs.interfaces import SUCCEEDED, Mark, Row, Sink
from headrace.runs.range_set import RangeSet
from headrace.text import path_text


class _RowFields(msgspec.Struct):
    """The fields that a line must have to be a row."""

    n: int
    status: str


_encode: Final = msgspec.json.Encoder().encode
_ROW_FIELDS: Final = msgspec.json.Decoder(_RowFields)
_NULL: Final = b"null"
_STATUS: Final = {
    status: _encode(status) for status in (SUCCEEDED, "failed", "expired", "cancelled", "rejected")
}


def row_line(row: Row) -> bytes:
    """Return a row as a JSON line, with its line feed."""
    if row.error is None:
        name, value = b"result", row.result or _NULL
    else:
        name, value = b"error", _encode(row.error)
    # Results and timings are JSON text already: formatting is faster than an encoder for each row.
    line = b'{"n":%d,"key":%b,"status":%b,"%b":%b,"attempts":%d,"timings":%b%b\n' % (
        row.n, _encode(row.key), _STATUS[row.status], name, value, row.attempts,
        row.timings or _NULL, b",%b" % _encode(row.carried)[1:] if row.carried else b"}",
    )  # fmt: skip
    return without_line_ends(line)


class JsonlSink(Sink):
    """Appends to a local file."""

    def __init__(self, path: Path) -> None:
        # Links of the folder are resolved, but not one of the file, which is replaced by name.
        self._path = path.parent.resolve() / path.name
        self.checkpoints = LocalCheckpoints(self._path)
        self._file: BinaryIO | None = None

    @override
    def describe(self) -> str:
        return path_text(self._path)

    @override
    def recover(self, mark: Mark | None) -> Iterable[tuple[int, bool]]:
        covered = 0 if mark is None else _bytes_of(mark, self._path)
        if covered:
            self._need_file()
        file = self._opened()
        size = os.fstat(file.fileno()).st_size
        if mark is None:
            if size:
                raise Conflict(
                    f"{self._path} already has lines, but no checkpoint of a run that could resume",
                    hint="Use another output, or remove the file.",
                )
            return ()
        if size < covered:
            raise Conflict(
                f"{self._path} has {size} bytes, and its run had written {covered}",
                hint="Restore the file, or use another output.",
            )
        return self._rows_behind(file, covered)

    @override
    def append(self, rows: Sequence[Row]) -> None:
        self._opened().write(b"".join(map(row_line, rows)))

    @override
    def sync(self) -> Mark:
        file = self._opened()
        file.flush()
        os.fsync(file.fileno())
        if not same_file(self._path, file.fileno()):
            raise Conflict(
                f"{self._path} was removed or replaced while its run wrote to it",
                hint="Restore it, or also remove its .run to start a new run.",
            )
        return {"bytes": file.tell()}

    @override
    def finish(self) -> Mark:
        return self.sync()  # the file is always in its last form

    @override
    def retract(self) -> RangeSet:
        """Write a new file without the rows that did not succeed, and rename it."""
        self._need_file()
        file, kept = self._opened(), RangeSet()
        file.seek(0)
        with replacing(self._path) as other:
            for _, line, row in _lines(file, self._path, 0):
                if row.status == SUCCEEDED:
                    kept.add(row.n)
                    other.write(line)
        self.close()
        self._opened().seek(0, os.SEEK_END)
        return kept

    @override
    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # a full disk: what was not written yet was not durable
                file.close()

    def _need_file(self) -> None:
        if not self._path.exists():  # `_opened` would create an empty file
            raise Conflict(
                f"{self._path} is gone, and its run had written rows to it",
                hint="Restore it, or use another output.",
            )

    def _opened(self) -> BinaryIO:
        if self._file is None:
            try:
                # Not "ab": a half-written line at the end is cut off and overwritten.
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise ConfigError(
                    f"{self._path}: cannot be written: {error.strerror}",
                    hint="The folder must exist, and you must be allowed to write the file.",
                ) from None
            self._file = os.fdopen(descriptor, "r+b")
        return self._file

    def _rows_behind(self, file: BinaryIO, at: int) -> list[tuple[int, bool]]:
        """Return the rows from a byte on; cut the file behind the last whole one."""
        file.seek(at)
        found = []
        for end, _, row in _lines(file, self._path, at):
            found.append((row.n, row.status == SUCCEEDED))
            at = end
        file.truncate(at)
        file.seek(at)
        return found


def _lines(file: BinaryIO, path: Path, at: int) -> Iterator[tuple[int, bytes, _RowFields]]:
    """Yield the whole lines from byte `at` on: where each ends, its text, and its fields.

    Raises:
        Conflict: a line is not a row.
    """
    for line in file:
        if not line.endswith(b"\n"):
            return  # the run was killed while it wrote this line
        at += len(line)
        try:
            row = _ROW_FIELDS.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Conflict(
                f"{path}: the line that ends at byte {at} is not a row of a run: {error}",
                hint="Restore the file, or use another output.",
            ) from None
        yield at, line, row


def _bytes_of(mark: Any, path: Path) -> int:
    if not isinstance(mark, dict) or not isinstance(mark.get("bytes"), int):
        raise Conflict(
            f"the checkpoint of {path} does not belong to a file of JSON lines",
            hint="Use another output.",
        )
    return int(mark["bytes"])
