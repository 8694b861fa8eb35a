"""Inputs from JSON lines: each line, or some of its columns with the others carried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, Final

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
from extensions.runs.sources.table import END, Item, TableSource
from headrace.config.suggestions import did_you_mean, listing
from headrace.errors import ConfigError, InvalidRequest
from headrace.jobs.values.encoding import parses
from headrace.jobs.values.media_types import BOM
from headrace.runs.columns import carry, is_list, picked
from headrace.runs.interfaces import Carried

#: A longer line is skipped; a file without line feeds would otherwise fill the memory.
LINE_MAX_BYTES: Final = 256 << 20
#: How many lines are searched for the named columns before anything is written.
CHECKED_LINES: Final = 1000
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)


class JsonlSource(TableSource):
    """The lines of files of JSON lines; blank lines are no inputs."""

    kind = "jsonl"

    @override
    def describe(self) -> dict[str, Any]:
        _check_lines(self.files[0])
        self._check_columns(self.files[0])
        return super().describe()

    def _check_columns(self, file: SourceFile) -> None:
        """Check that the named columns exist.

        Raises:
            ConfigError: none of the first lines has one of them, or the file cannot be read.
        """
        wanted, key = self.options.input, self.options.key
        if wanted is None and key is None:
            return
        known: dict[str, None] = {}
        named: dict[str, str] = {}
        for columns in islice(_objects(file), CHECKED_LINES):
            known.update(dict.fromkeys(columns))
            named = dict.fromkeys(picked(wanted, known) if wanted is not None else (), "--input")
            if key is not None:
                named.setdefault(key, "--key")
            if known.keys() >= named.keys():
                return
        for name, flag in named.items():
            if name not in known:
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
                    if number == 1:
                        text_start(file.name, line)
                    # Several files may have been joined, each with its own mark.
                    text = line.removeprefix(BOM)
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
        value: Any
        names = picked(column, columns)
        missing = next((name for name in names if name not in columns), None)
        if missing is not None:
            near = did_you_mean(missing, columns)
            value = InvalidRequest(f"{file.name}, line {number}: has no column {missing!r}{near}")
        elif is_list(column, columns):
            value = msgspec.Raw(msgspec.json.encode({name: columns[name] for name in names}))
        else:
            value = columns[column]
        others = {name: text for name, text in columns.items() if name not in names}
        return Item(where, value, at, carry(others), key)


def _check_lines(file: SourceFile) -> None:
    """Refuse a file that is one JSON document of several lines.

    Raises:
        ConfigError: neither of its first two lines is JSON, and the first begins a list or object.
    """
    first = list(islice(filter(bytes.strip, _lines(file)), 2))
    if len(first) < 2 or not first[0].lstrip().startswith((b"[", b"{")):
        return
    if first[0].strip() not in (b"[", b"{") and any(map(parses, first)):
        return
    raise ConfigError(
        f"{file.name}: its first lines are not JSON: it looks like one JSON document of many lines",
        hint="Write one input to a line, for a list by: jq -c '.[]' FILE > LINES.jsonl.",
    )


def _objects(file: SourceFile) -> Iterator[Carried]:
    """Yield the lines of a file that are objects."""
    for line in _lines(file):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield _OBJECT.decode(line)


def _lines(file: SourceFile) -> Iterator[bytes]:
    """Yield the lines of a file without byte order marks, as far as it can be read."""
    try:
        with closing(open_unpacked(file)) as stream:
            for line in iter(partial(stream.readline, LINE_MAX_BYTES), b""):
                yield line.removeprefix(BOM)
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
