"""Rows as JSON lines in a local file, in the order in which jobs end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from headrace.errors import ConfigError, Conflict
from headrace.runs.checkpoint_file import LocalCheckpoints, path_text, same_file, sync_folder
from headrace.runs.interfaces import STATUSES, Mark, Row
from headrace.runs.range_set import RangeSet


class _Known(msgspec.Struct):
    """What a line must have to be a row."""

    n: int
    status: str


_encode: Final = msgspec.json.Encoder().encode
_KNOWN: Final = msgspec.json.Decoder(_Known)
_NULL: Final = b"null"
_STATUS: Final = {status: _encode(status) for status in STATUSES}


def row_line(row: Row) -> bytes:
    """A row as a JSON line, with its line feed."""
    if row.error is None:
        name, came = b"result", row.result or _NULL
    else:
        name, came = b"error", _encode(row.error)
    # Put together by hand, as results and timings are text already: it is done for every input.
    return b'{"n":%d,"key":%b,"status":%b,"%b":%b,"attempts":%d,"timings":%b%b\n' % (
        row.n, _encode(row.key), _STATUS[row.status], name, came, row.attempts,
        row.timings or _NULL, b",%b" % _encode(row.carried)[1:] if row.carried else b"}",
    )  # fmt: skip


class JsonlSink:
    """Appends to a local file.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        # Through its folder's links, but not through its own: the file is replaced by name.
        self._path = path.parent.resolve() / path.name
        self.checkpoints = LocalCheckpoints(self._path)
        self._file: BinaryIO | None = None

    def describe(self) -> str:
        """The absolute path."""
        return path_text(self._path)

    def recover(self, mark: Mark | None) -> Iterable[tuple[int, bool]]:
        """Go on at the end of the last whole line.

        Raises:
            Conflict: it has lines, and no checkpoint; or fewer bytes than its checkpoint covers.
            ConfigError: it cannot be written.
        """
        covered = 0 if mark is None else _bytes_of(mark, self._path)
        if covered:
            self._need_file()
        file = self._opened()
        size = os.fstat(file.fileno()).st_size
        if mark is None:
            if size:
                raise Conflict(
                    f"{self._path} has lines already, and no run that could be gone on with",
                    hint="Name another output, or remove the file.",
                )
            return ()
        if size < covered:
            raise Conflict(
                f"{self._path} has {size} bytes, and its run had written {covered}",
                hint="Was it changed? Bring it back, or name another output.",
            )
        return self._rows_behind(file, covered)

    def append(self, rows: Sequence[Row]) -> None:
        """Write their lines."""
        file = self._opened()
        file.write(b"".join(map(row_line, rows)))

    def sync(self) -> Mark:
        """Have the lines on the disk; the mark says how many bytes.

        Raises:
            Conflict: the file is no longer there under its name, where nobody would find its rows.
        """
        file = self._opened()
        file.flush()
        os.fsync(file.fileno())
        if not same_file(self._path, file.fileno()):
            raise Conflict(
                f"{self._path} was removed or replaced while its run wrote to it",
                hint="Bring it back, or remove its .run too and begin anew.",
            )
        return {"bytes": file.tell()}

    def finish(self) -> Mark:
        """The same as `sync`: the file is in its last form at any time."""
        return self.sync()

    def retract(self) -> RangeSet:
        """Write the file anew without the rows that did not succeed, then rename it."""
        self._need_file()
        file, kept = self._opened(), RangeSet()
        part = self._path.with_name(f"{self._path.name}.new")
        file.seek(0)
        with part.open("wb") as other:
            for _, line, known in _lines(file, self._path, 0):
                if known.status == "succeeded":
                    kept.add(known.n)
                    other.write(line)
            other.flush()
            os.fsync(other.fileno())
        self.close()
        os.replace(part, self._path)
        sync_folder(self._path.parent)
        self._opened().seek(0, os.SEEK_END)
        return kept

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # of a full disk: what it still held was not safe anyway
                file.close()

    def _need_file(self) -> None:
        """Leave no empty file behind where one is missing."""
        if not self._path.exists():
            raise Conflict(
                f"{self._path} is gone, and its run had written rows there",
                hint="Bring it back, or name another output.",
            )

    def _opened(self) -> BinaryIO:
        if self._file is None:
            try:
                # Not "ab": what is half-written is cut off, and the rest goes there.
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise ConfigError(
                    f"{self._path}: cannot be written: {error.strerror}",
                    hint="The folder must exist, and the file be yours to write to.",
                ) from None
            self._file = os.fdopen(descriptor, "r+b")
        return self._file

    def _rows_behind(self, file: BinaryIO, at: int) -> list[tuple[int, bool]]:
        """The rows from a place on; the file is cut behind the last whole one."""
        file.seek(at)
        found = []
        for end, _, known in _lines(file, self._path, at):
            found.append((known.n, known.status == "succeeded"))
            at = end
        file.truncate(at)
        file.seek(at)
        return found


def _lines(file: BinaryIO, path: Path, at: int) -> Iterator[tuple[int, bytes, _Known]]:
    """The whole lines from where the file stands: where each ends, itself, and what it says.

    Raises:
        Conflict: one is no row.
    """
    for line in file:
        if not line.endswith(b"\n"):
            return  # the run was killed as it wrote this line; its input is not done
        at += len(line)
        try:
            known = _KNOWN.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Conflict(
                f"{path}: the line that ends at byte {at} is no row of a run: {error}",
                hint="Was the file changed? Bring it back, or name another output.",
            ) from None
        yield at, line, known


def _bytes_of(mark: Any, path: Path) -> int:
    if not isinstance(mark, dict) or not isinstance(mark.get("bytes"), int):
        raise Conflict(
            f"the checkpoint of {path} is not that of a file with JSON lines",
            hint="Name another output.",
        )
    return int(mark["bytes"])
