"""Rows of CSV files: a row or some of its columns are the input; the others are carried as text.

The first row names the columns. A quoted cell may contain line feeds. A broken row becomes an item
with an error, and the rows behind it are read as usual. Broken means too many or too few cells, a
quote in the wrong place, or bytes that are not UTF-8. After a quote that is never closed, nothing
more of the file can be read: its error is the last item.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec
from typing_extensions import override

from extensions.runs.sources.files import (
    BROKEN,
    READ_BYTES,
    SourceFile,
    cut_off,
    is_gzip,
    open_unpacked,
    text_start,
)
from extensions.runs.sources.options import SourceOptions
from extensions.runs.sources.table import END, Item, TableSource
from headrace.errors import ConfigError, InvalidRequest
from headrace.jobs.values.media_types import BOM, is_json
from headrace.runs.columns import (
    InputColumns,
    carry,
    check_column,
    check_twice,
    input_columns,
    media_type,
)
from headrace.runs.interfaces import Carried

#: The longest row; a quote that is never closed would otherwise fill the memory.
ROW_MAX_BYTES: Final = 64 << 20
#: The names of delimiters for `--delimiter`.
DELIMITERS: Final = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|"}
_ENCODE: Final = msgspec.json.Encoder().encode


class _RowTooLong(Exception):
    """A row is longer than ROW_MAX_BYTES."""


class _Lines:
    """A file's lines for csv.reader; `at` and `number` are where the last one ends.

    A line that is not UTF-8 does not end the row: its cells can still be counted.
    """

    def __init__(self, stream: BinaryIO, at: int, number: int) -> None:
        self._stream = stream
        self.at = at
        self.number = number
        self.next_row()

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._stream.readline(ROW_MAX_BYTES + 1)
        if not line:
            raise StopIteration
        self.at += len(line)
        self.number += 1
        if self.at - self._row_at > ROW_MAX_BYTES:
            raise _RowTooLong
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            self.undecodable = f"byte {error.start + 1} of line {self.number} is not UTF-8"
            return line.decode("utf-8", "replace")

    def next_row(self) -> None:
        """Begin the next row."""
        self._row_at = self.at
        self.undecodable = ""


class _Row(NamedTuple):
    """A row: its first line, its cells, what is wrong with it, and where it ends."""

    line: int
    cells: list[str]
    wrong: str
    at: Any


def _rows(stream: BinaryIO, delimiter: str, at: int, number: int) -> Iterator[_Row]:
    """Yield the rows of a file from a place on, the last one of a file that cannot go on too."""
    lines = _Lines(stream, at, number)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.next_row()
        first = lines.number + 1
        cells: list[str] = []
        try:
            cells = next(reader)
            wrong = lines.undecodable
        except StopIteration:
            return
        except csv.Error as error:
            wrong = _reason(error)
            if lines.number > first:
                wrong += f" (up to line {lines.number})"
        except _RowTooLong:
            yield _Row(first, [], f"it has more than {ROW_MAX_BYTES} bytes", END)
            return
        yield _Row(first, cells, wrong, [lines.at, lines.number])


class _Header(NamedTuple):
    """The first row, which columns of it are the input and the key, and where the second begins."""

    columns: list[str]
    input: InputColumns
    key: int | None
    at: int
    number: int


class CsvSource(TableSource):
    """The rows of CSV files. The delimiter is a comma, in a `.tsv` file a tab.

    Raises:
        ConfigError: the delimiter of the options cannot be one.
    """

    kind = "csv"

    def __init__(self, files: Sequence[SourceFile], options: SourceOptions) -> None:
        super().__init__(files, options)
        is_tsv = files[0].name.lower().removesuffix(".gz").endswith(".tsv")
        usual = "\t" if is_tsv else ","
        self._delimiter = usual if options.delimiter is None else _delimiter(options.delimiter)
        self._json = is_json(media_type(options.content_type))
        # This limit is the process's; a cell that is longer than a row may be fails with its row.
        csv.field_size_limit(max(csv.field_size_limit(), ROW_MAX_BYTES))

    @override
    def count_in(self, file: SourceFile) -> int | None:
        """Return the number of lines that end outside of quotes, without the first.

        Empty lines, which are no rows, are counted too.
        """
        if is_gzip(file) or not file.local:
            return None
        lines, inside, last = 0, False, b"\n"
        with closing(file.open()) as stream:
            while block := stream.read(READ_BYTES):
                last = block[-1:]
                parts = block.split(b'"')
                lines += sum(part.count(b"\n") for part in parts[inside::2])
                inside ^= len(parts) % 2 == 0
        return max(0, lines + (last != b"\n") - 1)

    @override
    def read(self, file: SourceFile, at: Any) -> Iterator[Item]:
        # A place is `[byte, line]`, where a row ends.
        header = self._header(file)
        start, number = (header.at, header.number) if at is None else (int(at[0]), int(at[1]))
        last: Any = [start, number]
        try:
            with closing(open_unpacked(file, start)) as stream:
                for row in _rows(stream, self._delimiter, start, number):
                    last = row.at
                    if row.wrong or row.cells:
                        yield self._item(file, header, row)
        except BROKEN as error:
            yield Item(str(last[1] + 1), cut_off(file, error), END)

    def _item(self, file: SourceFile, header: _Header, row: _Row) -> Item:
        wrong, cells, columns = row.wrong, row.cells, header.columns
        if not wrong and len(cells) != len(columns):
            wrong = (
                f"the row has {len(cells)} cells, and the first row names {len(columns)} columns"
            )
        if wrong:
            error = InvalidRequest(f"{file.name}, line {row.line}: {wrong}")
            return Item(str(row.line), error, row.at)
        others = dict(zip(columns, cells, strict=True))
        key = "" if header.key is None else cells[header.key]
        value: Any
        try:
            named = {name: self._value(name, others.pop(name)) for name in header.input.names}
        except ValueError as error:
            value = InvalidRequest(f"{file.name}, line {row.line}, {error}")
        else:
            is_object = header.input.is_object
            value = msgspec.Raw(_ENCODE(named)) if is_object else named[header.input.names[0]]
        carried: Carried = {name: msgspec.Raw(_ENCODE(cell)) for name, cell in others.items()}
        return Item(str(row.line), value, row.at, carry(carried), key)

    def _value(self, column: str, cell: str) -> str | msgspec.Raw:
        """Return a cell of the input: text, or JSON if the content type is JSON.

        Raises:
            ValueError: it is not JSON.
        """
        if not self._json:
            return cell
        try:
            value = msgspec.Raw(msgspec.json.format(cell.encode(), indent=-1))
            msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError) as error:
            why = error if cell else "the cell is empty"
            raise ValueError(f"column {column!r}: not JSON: {why}") from None
        return value

    def _header(self, file: SourceFile) -> _Header:
        with closing(open_unpacked(file)) as stream:
            try:
                begin = text_start(file.name, stream.read(len(BOM)))
                stream.seek(begin)
                row = next(_rows(stream, self._delimiter, begin, 0), None)
            except BROKEN as error:
                raise ConfigError(cut_off(file, error).message) from None
        if row is None or not (row.cells or row.wrong):
            raise ConfigError(f"{file.name} is empty: its first row must name the columns")
        if row.wrong:
            raise ConfigError(
                f"{file.name}, line 1: {row.wrong}",
                hint="The first row must name the columns, in UTF-8.",
            )
        return self._named(file, row)

    def _named(self, file: SourceFile, row: _Row) -> _Header:
        columns, options = row.cells, self.options
        check_twice(columns, f"{file.name}, line 1")
        if len(columns) == 1 and columns[0] != options.input:
            self._check_delimiter(file, columns[0])
        key = None
        if options.key is not None:
            key = columns.index(check_column(columns, options.key, file.name))
        return _Header(
            columns,
            input_columns(columns, options.input, options.content_type, file.name),
            key,
            *row.at,
        )

    def _check_delimiter(self, file: SourceFile, column: str) -> None:
        """Refuse a table of one column whose name contains another delimiter."""
        for name, delimiter in DELIMITERS.items():
            if delimiter in column and delimiter != self._delimiter:
                raise ConfigError(
                    f"{file.name}, line 1: the only column is {column!r}, which contains another "
                    f"delimiter ({name})",
                    hint=f"Add --delimiter {name}; if it is one column, name it with --input.",
                )


def _delimiter(text: str) -> str:
    delimiter = DELIMITERS.get(text, text)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(
            f"--delimiter {text!r}: must be one character, or one of {', '.join(DELIMITERS)}",
            hint="A quote or a line end cannot separate columns.",
        )
    return delimiter


def _reason(error: csv.Error) -> str:
    text = str(error)
    if text.startswith("unexpected end"):
        text = "a quote is opened in it and never closed, and what follows is lost"
    elif text.startswith("new-line character"):
        text = "it contains a carriage return alone; lines end with LF or CRLF"
    return f"the row cannot be read: {text}"
