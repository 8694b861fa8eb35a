"""A source of files of one kind, each with many inputs: rows of tables, samples of tar shards.

Which files, and where they lie, blobs.py knows; how one is read its `Reader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from headrace.config.suggestions import did_you_mean
from headrace.errors import ConfigError, Conflict, HeadraceError
from headrace.runs.interfaces import NOTHING_CARRIED, Carried, Cursor, Entry
from headrace.runs.sources.files import SourceFile, short_names, versions
from headrace.runs.sources.options import SourceOptions

#: Files behind a network whose ends are looked at only to show progress.
COUNTED_REMOTE_MAX: Final = 32
#: The column that is the input where none is named and there are several.
INPUT: Final = "input"
#: The place behind all inputs of a file.
END: Final = "end"


class Item(NamedTuple):
    """One input of a file.

    Attributes:
        where: its place in the file, for people.
        input: as `Entry.input`.
        at: JSON from which the reader goes on behind it.
        carried: as `Entry.carried`.
        key: what its own key column says; "" where there is none.
        content_type: as `Entry.content_type`.
    """

    where: str
    input: Any
    at: Any
    carried: Carried = NOTHING_CARRIED
    key: str = ""
    content_type: str | None = None


class Reader(Protocol):
    """Reads files of one kind."""

    @property
    def kind(self) -> str:
        """What it reads."""

    def read(self, blob: SourceFile, at: Any) -> Iterator[Item]:
        """The inputs of a file behind a place; None for all.

        Raises:
            HeadraceError: the file cannot be read, or not on. Of an input that alone is bad an item
                tells.
        """

    def count(self, blob: SourceFile) -> int | None:
        """How many inputs it has; None where finding out costs reading it all over a network."""


class TableSource:
    """The inputs of all files, one file after the other.

    Args:
        blobs: the files, in order.
        reader: how they are read.
        options: as the user gave them.
    """

    def __init__(self, blobs: Sequence[SourceFile], reader: Reader, options: SourceOptions) -> None:
        self._blobs = blobs
        self._reader = reader
        self._options = options
        self._names = short_names(blobs)

    def describe(self) -> dict[str, Any]:
        """The files, each with size and version, and the options.

        Asked before anything is written, so it looks at the first file: a misspelt column leaves no
        output that would have to be removed.

        Raises:
            HeadraceError: the first file cannot be read.
        """
        next(self._reader.read(self._blobs[0], None), None)
        return {
            "kind": self._reader.kind,
            "path": self._blobs[0].name,
            "files": len(self._blobs),
            "version": versions(self._blobs),
            **self._options.told(),
        }

    def count(self) -> int | None:
        """The sum over all files, where each can be counted cheaply."""
        if sum(not blob.local for blob in self._blobs) > COUNTED_REMOTE_MAX:
            return None
        total = 0
        for blob in self._blobs:
            found = self._reader.count(blob)
            if found is None:
                return None
            total += found
        return total

    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        """The entries behind a cursor, which is a file and a place in it.

        Raises:
            HeadraceError: a file cannot be read, or is not what it was.
        """
        first, at = (0, None) if after is None else (int(after[0]), after[1])
        if first > len(self._blobs):
            raise Conflict(f"{self._blobs[0].name}: there are fewer files than there were")
        several = len(self._blobs) > 1
        for index in range(first, len(self._blobs)):
            for item in self._reader.read(self._blobs[index], at):
                place = f"{self._names[index]}:{item.where}" if several else item.where
                cursor = [index + 1, None] if item.at == END else [index, item.at]
                yield Entry(
                    n, item.key or place, item.input, item.carried, cursor,
                    item.content_type or self._options.content_type,
                )  # fmt: skip
                n += 1
            at = None


def chosen(columns: Sequence[str], wanted: str | None, of: str) -> str:
    """The column that is the input.

    Args:
        columns: all there are.
        wanted: what the user has named; None: the only one, else `input`.
        of: the file, for the message.

    Raises:
        ConfigError: there is none of that name, or several and none is named.
    """
    if wanted is None:
        if len(columns) == 1:
            return columns[0]
        if INPUT in columns:
            return INPUT
        raise ConfigError(
            f"{of} has the columns {_listed(columns)}, and none is named as the input",
            hint="Name it by --input.",
        )
    if wanted not in columns:
        raise ConfigError(
            f"{of} has no column {wanted!r}{did_you_mean(wanted, columns)}",
            hint=f"It has {_listed(columns)}.",
        )
    return wanted


def key_column(columns: Sequence[str], wanted: str | None, of: str) -> str | None:
    """The column that names the input.

    Raises:
        ConfigError: there is none of that name.
    """
    return None if wanted is None else chosen(columns, wanted, of)


def key_text(value: Any) -> str:
    """A value of the key column as a key; "" for none."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def bad(error: HeadraceError, where: str, at: Any, carried: Carried = NOTHING_CARRIED) -> Item:
    """An input that cannot be sent."""
    return Item(where, error, at, carried)


def _listed(columns: Sequence[str]) -> str:
    shown = ", ".join(map(repr, columns[:20]))
    return f"{shown} and {len(columns) - 20} more" if len(columns) > 20 else shown or "none"
