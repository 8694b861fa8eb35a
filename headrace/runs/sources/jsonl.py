"""Inputs from JSON lines: each line, or one column of it, the others being carried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, Final

import msgspec
from typing_extensions import override

from headrace.config.suggestions import did_you_mean, listing
from headrace.errors import ConfigError, InvalidRequest
from headrace.runs.interfaces import Carried, carry
from headrace.runs.sources.files import BROKEN, READ_BYTES, SourceFile, cut_off, packed, unpacked
from headrace.runs.sources.options import SourceOptions
from headrace.runs.sources.table import END, Item, TableSource, bad

#: A longer line is read over: a file with no line feeds would else be taken into memory whole.
LINE_MAX_BYTES: Final = 256 << 20
_MARK: Final = b"\xef\xbb\xbf"
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)


#: So many lines are looked at before anything is written: one of them is to have the column.
LOOKED_AT: Final = 1000


class JsonlSource(TableSource):
    """The lines of all files.

    Args:
        blobs: the files, in order.
        options: as the user gave them.
    """

    def __init__(self, blobs: Sequence[SourceFile], options: SourceOptions) -> None:
        self._jsonl = JsonlReader(options)
        self._first = blobs[0]
        super().__init__(blobs, self._jsonl, options)

    @override
    def describe(self) -> dict[str, Any]:
        self._jsonl.look(self._first)
        return super().describe()


class JsonlReader:
    """Reads files of JSON lines; lines of nothing but space are no inputs.

    Args:
        options: the columns.
    """

    kind: Final = "jsonl"

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def look(self, blob: SourceFile) -> None:
        """See that there are the columns that are asked for: a misspelt one is told at once.

        Raises:
            ConfigError: none of the first lines has one of them, or the file cannot be read.
        """
        asked = {
            name: how
            for name, how in ((self._options.input, "--input"), (self._options.key, "--key"))
            if name is not None
        }
        if not asked:
            return
        known: dict[str, None] = {}
        for columns in islice(_objects(blob), LOOKED_AT):
            known.update(dict.fromkeys(columns))
            if all(name in known for name in asked):
                return
        for name, how in asked.items():
            if known and name not in known:
                raise ConfigError(
                    f"{blob.name}: none of its first lines has a column {name!r}, which {how} "
                    f"names{did_you_mean(name, known)}",
                    hint=f"They have {listing(known)}.",
                )

    def count(self, blob: SourceFile) -> int | None:
        """The file's lines; more than there are entries where some are empty."""
        if packed(blob) or not blob.local:
            return None
        lines, last = 0, b"\n"
        with closing(blob.open()) as file:
            while block := file.read(READ_BYTES):
                lines += block.count(b"\n")
                last = block[-1:]
        return lines + (last != b"\n")

    def read(self, blob: SourceFile, at: Any) -> Iterator[Item]:
        """The lines behind a place: `[byte, line]`, where a line ends.

        Raises:
            Conflict: the file has changed.
            ConfigError: it cannot be read.
        """
        place, number = (0, 0) if at is None else (int(at[0]), int(at[1]))
        try:
            with closing(unpacked(blob, place)) as file:
                for line in iter(partial(file.readline, LINE_MAX_BYTES), b""):
                    place += len(line)
                    number += 1
                    if len(line) == LINE_MAX_BYTES and not line.endswith(b"\n"):
                        place += _read_over(file)
                        yield _too_long(blob, number, [place, number])
                        continue
                    text = line.removeprefix(_MARK) if number == 1 else line
                    if text and not text.isspace():
                        yield self._item(blob, text, number, [place, number])
        except BROKEN as error:
            yield bad(cut_off(blob, error), str(number + 1), END)
        except OSError as error:
            raise ConfigError(f"{blob.name}: cannot be read: {error.strerror}") from None

    def _item(self, blob: SourceFile, line: bytes, number: int, at: Any) -> Item:
        column, key_column = self._options.input, self._options.key
        where = str(number)
        try:
            if not line.isascii():
                line.decode()  # what is passed on unread is not looked at by msgspec
            if column is None and key_column is None:
                return Item(where, _VALUE.decode(line), at)
            columns = _OBJECT.decode(line)
            key = _key(columns, key_column)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            wrong = f"line {number}: is not the JSON that is expected: {error}"
            return bad(InvalidRequest(f"{blob.name}, {wrong}"), where, at)
        if column is None:
            return Item(where, _VALUE.decode(line), at, key=key)
        given: Any = columns.pop(column, None)
        carried = carry(columns)
        if given is None:
            near = did_you_mean(column, columns)
            given = InvalidRequest(f"{blob.name}, line {number}: has no column {column!r}{near}")
        return Item(where, given, at, carried, key)


def _objects(blob: SourceFile) -> Iterator[Carried]:
    """The lines of a file that are objects."""
    try:
        with closing(unpacked(blob)) as file:
            for line in iter(partial(file.readline, LINE_MAX_BYTES), b""):
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    yield _OBJECT.decode(line.removeprefix(_MARK))
    except BROKEN:
        return  # what comes before is looked at; who reads it says so
    except OSError as error:
        raise ConfigError(f"{blob.name}: cannot be read: {error.strerror}") from None


def _key(columns: Carried, column: str | None) -> str:
    """The text of the key column; "" where there is none."""
    if column is None or column not in columns:
        return ""
    text = bytes(columns[column])
    return _TEXT.decode(text) if text.startswith(b'"') else text.decode()


def _read_over(file: BinaryIO) -> int:
    """Read the rest of a line and keep nothing of it; its length."""
    length = 0
    while rest := file.readline(READ_BYTES):
        length += len(rest)
        if rest.endswith(b"\n"):
            break
    return length


def _too_long(blob: SourceFile, number: int, at: Any) -> Item:
    wrong = InvalidRequest(
        f"{blob.name}, line {number}: has more than {LINE_MAX_BYTES} bytes",
        hint="Is it a file of JSON lines, each ending by a line feed?",
    )
    return bad(wrong, str(number), at)
