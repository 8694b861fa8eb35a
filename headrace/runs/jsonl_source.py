"""Inputs from a file of JSON lines: each line, or one column of it, the others being carried."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import ConfigError, Conflict, InvalidRequest
from headrace.runs.options import SourceOptions
from headrace.runs.seams import NOTHING_CARRIED, Carried, Cursor, Entry, carry

_BLOCK_BYTES: Final = 1 << 20
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)


class JsonlSource:
    """Reads a local file of JSON lines; lines of nothing but space are no inputs.

    Args:
        path: the file.
        options: the columns.

    Raises:
        ConfigError: there is no such file.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self._path = path.resolve()
        self._options = options
        if not self._path.is_file():
            raise ConfigError(f"{path}: no such file")

    def describe(self) -> dict[str, Any]:
        """The file, when it was changed last, and the columns."""
        found = self._path.stat()
        return {
            "kind": "jsonl", "path": str(self._path), "bytes": found.st_size,
            "changed_ns": found.st_mtime_ns, **self._options.told(),
        }  # fmt: skip

    def count(self) -> int | None:
        """The file's lines; more than there are entries where some are empty."""
        lines, last = 0, b"\n"
        with self._path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                lines += block.count(b"\n")
                last = block[-1:]
        return lines + (last != b"\n")

    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        """The lines behind a cursor, which is the place in the file where a line ends.

        Raises:
            Conflict: the file is shorter than that.
            ConfigError: the file cannot be read.
        """
        at, number = (0, 0) if after is None else (int(after[0]), int(after[1]))
        try:
            with self._path.open("rb", _BLOCK_BYTES) as file:
                if os.fstat(file.fileno()).st_size < at:
                    raise Conflict(f"{self._path} is shorter than it was")
                file.seek(at)
                for line in file:
                    at += len(line)
                    number += 1
                    if not line.isspace():
                        yield self._entry(n, number, line, [at, number])
                        n += 1
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be read: {error.strerror}") from None

    def _entry(self, n: int, number: int, line: bytes, cursor: Cursor) -> Entry:
        column, key_column = self._options.input, self._options.key
        try:
            if column is None and key_column is None:
                value: Any = _VALUE.decode(line)
                return Entry(n, str(number), value, NOTHING_CARRIED, cursor)
            columns = _OBJECT.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._bad(n, number, cursor, f"is not the JSON that is expected: {error}")
        key = _key(columns, key_column, number)
        if column is None:
            return Entry(n, key, _VALUE.decode(line), NOTHING_CARRIED, cursor)
        given = columns.pop(column, None)
        if given is None:
            return self._bad(n, number, cursor, f"has no column {column!r}", key, carry(columns))
        return Entry(n, key, given, carry(columns), cursor)

    def _bad(
        self,
        n: int,
        number: int,
        cursor: Cursor,
        why: str,
        key: str = "",
        carried: Carried = NOTHING_CARRIED,
    ) -> Entry:
        error = InvalidRequest(f"{self._path}, line {number}: {why}")
        return Entry(n, key or str(number), error, carried, cursor)


def _key(columns: Carried, column: str | None, number: int) -> str:
    """The text of the key column; the line's number where it has none."""
    if column is None or column not in columns:
        return str(number)
    value = msgspec.json.decode(columns[column])
    return value if isinstance(value, str) else bytes(columns[column]).decode()
