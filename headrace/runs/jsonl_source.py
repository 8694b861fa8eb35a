"""Inputs from JSON lines: each line, or one column of it, the others being carried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import msgspec

from headrace.errors import ConfigError, InvalidRequest
from headrace.runs.blobs import BROKEN, READ_BYTES, Blob, cut_off, packed, unpacked
from headrace.runs.options import SourceOptions
from headrace.runs.seams import Carried, carry
from headrace.runs.tables import END, Item, bad
from headrace.suggest import did_you_mean

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)


class JsonlReader:
    """Reads files of JSON lines; lines of nothing but space are no inputs.

    Args:
        options: the columns.
    """

    kind: Final = "jsonl"

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def count(self, blob: Blob) -> int | None:
        """The file's lines; more than there are entries where some are empty."""
        if packed(blob) or not blob.local:
            return None
        lines, last = 0, b"\n"
        with closing(blob.open()) as file:
            while block := file.read(READ_BYTES):
                lines += block.count(b"\n")
                last = block[-1:]
        return lines + (last != b"\n")

    def read(self, blob: Blob, at: Any) -> Iterator[Item]:
        """The lines behind a place: `[byte, line]`, where a line ends.

        Raises:
            Conflict: the file has changed.
            ConfigError: it cannot be read.
        """
        place, number = (0, 0) if at is None else (int(at[0]), int(at[1]))
        try:
            with closing(unpacked(blob, place)) as file:
                for line in file:
                    place += len(line)
                    number += 1
                    if not line.isspace():
                        yield self._item(blob, line, number, [place, number])
        except BROKEN as error:
            yield bad(cut_off(blob, error), str(number + 1), END)
        except OSError as error:
            raise ConfigError(f"{blob.name}: cannot be read: {error.strerror}") from None

    def _item(self, blob: Blob, line: bytes, number: int, at: Any) -> Item:
        column, key_column = self._options.input, self._options.key
        where = str(number)
        try:
            if column is None and key_column is None:
                return Item(where, _VALUE.decode(line), at)
            columns = _OBJECT.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            wrong = f"line {number}: is not the JSON that is expected: {error}"
            return bad(InvalidRequest(f"{blob.name}, {wrong}"), where, at)
        key = _key(columns, key_column)
        if column is None:
            return Item(where, _VALUE.decode(line), at, key=key)
        given: Any = columns.pop(column, None)
        carried = carry(columns)
        if given is None:
            near = did_you_mean(column, columns)
            given = InvalidRequest(f"{blob.name}, line {number}: has no column {column!r}{near}")
        return Item(where, given, at, carried, key)


def _key(columns: Carried, column: str | None) -> str:
    """The text of the key column; "" where there is none."""
    if column is None or column not in columns:
        return ""
    value = msgspec.json.decode(columns[column])
    return value if isinstance(value, str) else bytes(columns[column]).decode()
