"""Inputs from JSON lines: each line, or one column of it with the others carried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, Final

import msgspec
from typing_extensions import override

from headrace.config.suggestions import did_you_mean, listing
from headrace.errors import ConfigError, InvalidRequest
from headrace.runs.interfaces import Carried, carry
from headrace.runs.sources.files import (
    BROKEN,
    READ_BYTES,
    SourceFile,
    cut_off,
    is_gzip,
    open_unpacked,
)
from headrace.runs.sources.table import END, Item, TableSource

#: A longer line is skipped; a file without line feeds would otherwise fill the memory.
LINE_MAX_BYTES: Final = 256 << 20
#: How many lines are searched for the named columns before anything is written.
CHECKED_LINES: Final = 1000
_BOM: Final = b"\xef\xbb\xbf"
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)


class JsonlSource(TableSource):
    """The lines of files of JSON lines; blank lines are no inputs."""

    kind = "jsonl"

    @override
    def describe(self) -> dict[str, Any]:
        self._check_columns(self.files[0])
        return super().describe()

    def _check_columns(self, file: SourceFile) -> None:
        """Check that the named columns exist.

        Raises:
            ConfigError: none of the first lines has one of them, or the file cannot be read.
        """
        named = {
            name: flag
            for name, flag in ((self.options.input, "--input"), (self.options.key, "--key"))
            if name is not None
        }
        if not named:
            return
        known: dict[str, None] = {}
        for columns in islice(_objects(file), CHECKED_LINES):
            known.update(dict.fromkeys(columns))
            if all(name in known for name in named):
                return
        for name, flag in named.items():
            if known and name not in known:
                raise ConfigError(
                    f"{file.name}: none of its first lines has the column {name!r} of {flag}"
                    f"{did_you_mean(name, known)}",
                    hint=f"They have {listing(known)}.",
                )

    @override
    def count_in(self, file: SourceFile) -> int | None:
        """Return the number of lines; blank lines, which are no inputs, are counted too."""
        if is_gzip(file) or not file.local:
            return None
        lines, last = 0, b"\n"
        with closing(file.open()) as stream:
            while block := stream.read(READ_BYTES):
                lines += block.count(b"\n")
                last = block[-1:]
        return lines + (last != b"\n")

    @override
    def read(self, file: SourceFile, at: Any) -> Iterator[Item]:
        # A place is `[byte, line]`, where a line ends.
        place, number = (0, 0) if at is None else (int(at[0]), int(at[1]))
        try:
            with closing(open_unpacked(file, place)) as stream:
                for line in iter(partial(stream.readline, LINE_MAX_BYTES), b""):
                    place += len(line)
                    number += 1
                    if len(line) == LINE_MAX_BYTES and not line.endswith(b"\n"):
                        place += _skip_line(stream)
                        yield _too_long(file, number, [place, number])
                        continue
                    text = line.removeprefix(_BOM) if number == 1 else line
                    if text and not text.isspace():
                        yield self._item(file, text, number, [place, number])
        except BROKEN as error:
            yield Item(str(number + 1), cut_off(file, error), END)
        except OSError as error:
            raise ConfigError(f"{file.name}: cannot be read: {error.strerror}") from None

    def _item(self, file: SourceFile, line: bytes, number: int, at: Any) -> Item:
        column, key_column = self.options.input, self.options.key
        where = str(number)
        try:
            if not line.isascii():
                line.decode()  # msgspec does not check the text of a Raw
            if column is None and key_column is None:
                return Item(where, _VALUE.decode(line), at)
            columns = _OBJECT.decode(line)
            key = _key(columns, key_column)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            wrong = f"{file.name}, line {number}: not the expected JSON: {error}"
            return Item(where, InvalidRequest(wrong), at)
        if column is None:
            return Item(where, _VALUE.decode(line), at, key=key)
        value: Any = columns.pop(column, None)
        if value is None:
            near = did_you_mean(column, columns)
            value = InvalidRequest(f"{file.name}, line {number}: has no column {column!r}{near}")
        return Item(where, value, at, carry(columns), key)


def _objects(file: SourceFile) -> Iterator[Carried]:
    """Yield the lines of a file that are objects."""
    try:
        with closing(open_unpacked(file)) as stream:
            for line in iter(partial(stream.readline, LINE_MAX_BYTES), b""):
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    yield _OBJECT.decode(line.removeprefix(_BOM))
    except BROKEN:
        return  # `read` reports it
    except OSError as error:
        raise ConfigError(f"{file.name}: cannot be read: {error.strerror}") from None


def _key(columns: Carried, column: str | None) -> str:
    """Return the text of the key column; "" without one."""
    if column is None or column not in columns:
        return ""
    text = bytes(columns[column])
    return _TEXT.decode(text) if text.startswith(b'"') else text.decode()


def _skip_line(stream: BinaryIO) -> int:
    """Skip the rest of a line; return its length."""
    length = 0
    while rest := stream.readline(READ_BYTES):
        length += len(rest)
        if rest.endswith(b"\n"):
            break
    return length


def _too_long(file: SourceFile, number: int, at: Any) -> Item:
    wrong = InvalidRequest(
        f"{file.name}, line {number}: has more than {LINE_MAX_BYTES} bytes",
        hint="A file of JSON lines has a line feed behind each input.",
    )
    return Item(str(number), wrong, at)
