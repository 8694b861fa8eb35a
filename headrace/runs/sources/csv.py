"""Rows of CSV files: one column is the input, the others are carried as the text that they are.

The first row names the columns. Cells in quotes may hold line feeds. The delimiter is `,`, or that
of `; tab |` which tells apart the columns that are asked for. A row that is broken (too many or too
few cells, a quote that is opened and never closed, bytes that are not UTF-8) becomes an item with
an error, and those behind it are read as ever.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from headrace.errors import ConfigError, InvalidRequest
from headrace.jobs.media_types import is_json
from headrace.runs.interfaces import Carried, carry
from headrace.runs.sources.files import BROKEN, READ_BYTES, SourceFile, cut_off, packed, unpacked
from headrace.runs.sources.options import SourceOptions
from headrace.runs.sources.table import END, Item, bad, chosen, key_column

#: The longest row: a quote that is never closed would else take all the rest into memory.
ROW_MAX_BYTES: Final = 64 << 20
_DELIMITERS: Final = (",", ";", "\t", "|")
_MARK: Final = b"\xef\xbb\xbf"
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
_ENCODE: Final = msgspec.json.Encoder().encode


class _RowTooLong(Exception):
    """More lines than a row may have."""


class _Lines:
    """A file's lines for csv.reader; knows which of them the row has taken that it reads.

    Bytes that are not UTF-8 do not end the row: where its cells end is known without them.
    """

    def __init__(self, file: BinaryIO, at: int, number: int) -> None:
        self._file = file
        self._again: deque[bytes] = deque()
        self._taken: list[bytes] = []
        self._taken_bytes = 0
        self.at = at
        self.number = number
        self.undecodable = ""

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else self._file.readline(ROW_MAX_BYTES + 1)
        if not line:
            raise StopIteration
        self._taken.append(line)
        self._taken_bytes += len(line)
        if self._taken_bytes > ROW_MAX_BYTES:
            raise _RowTooLong
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            place = self.number + len(self._taken)
            self.undecodable = f"byte {error.start + 1} of line {place} is not UTF-8"
            return line.decode("utf-8", "replace")

    def begin(self) -> None:
        """The row is read; the next one begins."""
        self.at += self._taken_bytes
        self.number += len(self._taken)
        self._taken, self._taken_bytes, self.undecodable = [], 0, ""

    def begin_behind_first(self) -> None:
        """The row is broken: the next begins at its second line, if it has one."""
        self._again.extendleft(reversed(self._taken[1:]))
        self._taken = self._taken[:1]
        self._taken_bytes = len(self._taken[0]) if self._taken else 0
        self.begin()


class _Row(NamedTuple):
    """A row: the line that it begins at, its cells, what is wrong with it, and where it ends."""

    line: int
    cells: list[str]
    wrong: str
    at: Any


class _Rows:
    """The rows of a file from a place on."""

    def __init__(self, file: BinaryIO, delimiter: str, at: int, number: int) -> None:
        self.lines = _Lines(file, at, number)
        self._rows = csv.reader(self.lines, delimiter=delimiter, strict=True)

    def __iter__(self) -> _Rows:
        return self

    def __next__(self) -> _Row:
        lines = self.lines
        first = lines.number + 1
        try:
            cells = next(self._rows)
        except csv.Error as error:
            # The quote that is one too many may stand far above: only its own line is given up.
            lines.begin_behind_first()
            return _Row(first, [], _why(error), [lines.at, lines.number])
        except _RowTooLong:
            lines.begin_behind_first()
            return _Row(
                first, [], f"it has more than {ROW_MAX_BYTES} bytes", [lines.at, lines.number]
            )
        wrong = lines.undecodable
        lines.begin()
        return _Row(first, cells, wrong, [lines.at, lines.number])


class _Head(NamedTuple):
    """What the first row says, and where the second begins."""

    columns: list[str]
    delimiter: str
    input: int
    key: int | None
    at: int
    number: int


class CsvReader:
    """Reads CSV files.

    Args:
        options: which column is the input, which the key, and what the input is.
        delimiter: where it is known beforehand.
    """

    kind: Final = "csv"

    def __init__(self, options: SourceOptions, delimiter: str | None = None) -> None:
        self._options = options
        self._delimiters = (delimiter,) if delimiter else _DELIMITERS
        self._json = is_json((options.content_type or "").partition(";")[0].strip().lower())
        # For all of the process; a cell that is longer than a row may be is refused by its row.
        csv.field_size_limit(max(csv.field_size_limit(), ROW_MAX_BYTES))

    def count(self, blob: SourceFile) -> int | None:
        """The lines that end outside of quotes, but the first; empty ones are counted, too."""
        if packed(blob) or not blob.local:
            return None
        lines, inside, last = 0, False, b"\n"
        with closing(blob.open()) as file:
            while block := file.read(READ_BYTES):
                last = block[-1:]
                parts = block.split(b'"')
                lines += sum(part.count(b"\n") for part in parts[inside::2])
                inside ^= len(parts) % 2 == 0
        return max(0, lines + (last != b"\n") - 1)

    def read(self, blob: SourceFile, at: Any) -> Iterator[Item]:
        """The rows behind a place: `[byte, line]`, where a row ends.

        Raises:
            ConfigError: the file is no such table, or lacks the column.
            Conflict: it has changed.
        """
        head = self._head(blob)
        start, number = (head.at, head.number) if at is None else (int(at[0]), int(at[1]))
        last: Any = [start, number]
        try:
            with closing(unpacked(blob, start)) as file:
                for row in _Rows(file, head.delimiter, start, number):
                    last = row.at
                    if row.wrong or row.cells:
                        yield self._item(blob, head, row)
        except BROKEN as error:
            yield bad(cut_off(blob, error), str(last[1] + 1), END)

    def _item(self, blob: SourceFile, head: _Head, row: _Row) -> Item:
        wrong, cells = row.wrong, row.cells
        if not wrong and len(cells) != len(head.columns):
            wrong = (
                f"the row has {len(cells)} cells, and the first row names {len(head.columns)} "
                "columns"
            )
        if wrong:
            error = InvalidRequest(f"{blob.name}, line {row.line}: {wrong}")
            return bad(error, str(row.line), row.at)
        carried: Carried = {
            name: msgspec.Raw(_ENCODE(cell)) for name, cell in zip(head.columns, cells, strict=True)
        }
        del carried[head.columns[head.input]]
        key = "" if head.key is None else cells[head.key]
        value: Any = cells[head.input]
        if self._json:
            try:
                value = msgspec.Raw(msgspec.json.format(value.encode(), indent=-1))
                msgspec.json.decode(value)
            except (msgspec.DecodeError, UnicodeError) as error:
                value = InvalidRequest(
                    f"{blob.name}, line {row.line}, column {head.columns[head.input]!r}: "
                    f"not JSON: {error}"
                )
        return Item(str(row.line), value, row.at, carry(carried), key)

    def _head(self, blob: SourceFile) -> _Head:
        with closing(unpacked(blob)) as file:
            try:
                start = file.read(len(_MARK))
                if start.startswith(_UTF16):
                    raise ConfigError(
                        f"{blob.name} is UTF-16, not UTF-8",
                        hint="Convert it: iconv -f UTF-16 -t UTF-8.",
                    )
                file.seek(len(_MARK) if start == _MARK else 0)
                return self._first_row(blob, file)
            except BROKEN as error:
                raise ConfigError(cut_off(blob, error).message) from None

    def _first_row(self, blob: SourceFile, file: BinaryIO) -> _Head:
        """The columns by the first delimiter that has those which are asked for."""
        begin = file.tell()
        wrong: dict[int, ConfigError] = {}
        for delimiter in self._delimiters:
            file.seek(begin)
            rows = _Rows(file, delimiter, begin, 0)
            row = next(rows, None)
            if row is None or not (row.cells or row.wrong):
                raise ConfigError(f"{blob.name} is empty: its first row is to name the columns")
            if row.wrong:
                raise ConfigError(
                    f"{blob.name}, line 1: {row.wrong}",
                    hint="The first row is to name the columns, in UTF-8.",
                )
            try:
                return self._named(blob, row, delimiter)
            except ConfigError as error:
                wrong.setdefault(len(row.cells), error)
        raise wrong[max(wrong)]

    def _named(self, blob: SourceFile, row: _Row, delimiter: str) -> _Head:
        columns, wanted = row.cells, self._options.input
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"{blob.name}, line 1: two columns are called {twice!r}")
        if (
            wanted is None
            and len(columns) == 1
            and any(mark in columns[0] for mark in self._delimiters)
        ):
            # It may be several columns by another delimiter, whose word then counts more.
            raise ConfigError(
                f"{blob.name}, line 1: the one column {columns[0]!r} may be several",
                hint="Name the one that is the input by --input.",
            )
        column = chosen(columns, wanted, blob.name)
        key = key_column(columns, self._options.key, blob.name)
        at_key = None if key is None else columns.index(key)
        return _Head(columns, delimiter, columns.index(column), at_key, *row.at)


def _why(error: csv.Error) -> str:
    text = str(error)
    if text.startswith("unexpected end"):
        text = "a quote is opened in it and never closed"
    elif text.startswith("new-line character"):
        text = "a carriage return stands alone in it: lines end by LF or CRLF"
    return f"the row cannot be read: {text}"
