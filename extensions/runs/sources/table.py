"""A source of files of one kind, each with many inputs: rows of tables, samples of tar shards.

files.py knows which files these are, and a subclass of `TableSource` how one is read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
from typing_extensions import override

from extensions.runs.sources.files import SourceFile, short_names, versions
from extensions.runs.sources.options import SourceOptions
from headrace.config.suggestions import did_you_mean
from headrace.errors import ConfigError, Conflict
from headrace.jobs.values.media_types import is_json
from headrace.runs.interfaces import NOTHING_CARRIED, Carried, Cursor, Entry, Source

#: The most remote files that are counted, which reads their ends, only to show progress.
COUNTED_REMOTE_MAX: Final = 32
#: The place behind all inputs of a file.
END: Final = "end"
#: The columns of every row. A carried column with such a name gets another one: see `carry`.
OWN_COLUMNS: Final = ("n", "key", "status", "result", "error", "attempts", "timings")
_OTHER_NAMES: Final = {name: f"input.{name}" for name in OWN_COLUMNS}


class Item(msgspec.Struct):
    """One input of a file; tracked by the garbage collector, as its input may be an error.

    Attributes:
        where: its place in the file, for people.
        at: JSON from which `TableSource.read` continues behind it.
        key: the value of its key column; "" if it has none.
    """

    where: str
    input: Any
    at: Any
    carried: Carried = NOTHING_CARRIED
    key: str = ""
    content_type: str | None = None


class TableSource(Source):
    """The inputs of all files, one file after the other."""

    kind: ClassVar[str]

    def __init__(self, files: Sequence[SourceFile], options: SourceOptions) -> None:
        self.files = files
        self.options = options
        self._names = short_names(files)

    @abstractmethod
    def read(self, file: SourceFile, at: Any) -> Iterator[Item]:
        """Yield the inputs of a file behind a place; None for all.

        Raises:
            ConfigError: the file cannot be read (further). A single bad input is an item whose
                `input` is the error.
            Conflict: it has changed.
        """

    @abstractmethod
    def count_in(self, file: SourceFile) -> int | None:
        """Return the number of inputs in a file; None if that needs a download of all of it."""

    @override
    def describe(self) -> dict[str, Any]:
        # The engine calls this before it writes anything. So the first file is read here: a
        # misspelt column leaves no output that would have to be removed.
        next(self.read(self.files[0], None), None)
        return {
            "kind": self.kind,
            "path": self.files[0].name,
            "files": len(self.files),
            "version": versions(self.files),
            **self.options.described(),
        }

    @override
    def count(self) -> int | None:
        if sum(not file.local for file in self.files) > COUNTED_REMOTE_MAX:
            return None
        total = 0
        for file in self.files:
            count = self.count_in(file)
            if count is None:
                return None
            total += count
        return total

    @override
    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        # A cursor is the index of a file, and a place in it.
        first, at = (0, None) if after is None else (int(after[0]), after[1])
        if first > len(self.files):
            raise Conflict(f"{self.files[0].name}: there are fewer files than before")
        several = len(self.files) > 1
        for index in range(first, len(self.files)):
            for item in self.read(self.files[index], at):
                place = f"{self._names[index]}:{item.where}" if several else item.where
                cursor = [index + 1, None] if item.at == END else [index, item.at]
                yield Entry(
                    n, item.key or place, item.input, item.carried, cursor,
                    item.content_type or self.options.content_type,
                )  # fmt: skip
                n += 1
            at = None


class InputColumns(NamedTuple):
    """Which columns of a row are the input.

    Attributes:
        is_object: the input is an object of them; else it is the value of the only one.
    """

    names: Sequence[str]
    is_object: bool


def input_columns(columns: Collection[str], options: SourceOptions, of: str) -> InputColumns:
    """Return the columns that are the input: those that the user named, else all of them.

    A column whose own name has a comma can be named alone.

    Raises:
        ConfigError: a named column does not exist, or the content type is for a single value.
    """
    wanted, columns = options.input, dict.fromkeys(columns)
    if wanted is not None:
        names = picked(wanted, columns)
        for name in names:
            check_column(columns, name, of)
        if not is_list(wanted, columns):
            return InputColumns(names, is_object=False)
    kind = media_type(options.content_type)
    if kind and not is_json(kind):
        raise ConfigError(
            f"--content-type {options.content_type} means nothing for an input of several columns,"
            " which is JSON",
            hint="Name one column with --input, or leave it out.",
        )
    return InputColumns(list(columns) if wanted is None else names, is_object=True)


def is_list(wanted: str, columns: Collection[str]) -> bool:
    """Return whether the text of `--input` names several columns."""
    return "," in wanted and wanted not in columns


def picked(wanted: str, columns: Collection[str]) -> list[str]:
    """Return the columns that the text of `--input` names."""
    if not is_list(wanted, columns):
        return [wanted]
    names = [name if name in columns else name.strip() for name in wanted.split(",")]
    return list(dict.fromkeys(names))


def media_type(content_type: str | None) -> str:
    """Return a content type without its parameters, in lower case; "" for none."""
    return (content_type or "").partition(";")[0].strip().lower()


def check_twice(columns: Sequence[str], of: str) -> None:
    """Check that every column has a name of its own.

    Raises:
        ConfigError: two columns have the same name.
    """
    if len(set(columns)) == len(columns):
        return
    twice = next(name for name, count in Counter(columns).items() if count > 1)
    raise ConfigError(f"{of}: two columns are called {twice!r}", hint="Rename one of them.")


def check_column(columns: Collection[str], wanted: str, of: str) -> str:
    """Return the column that the user named.

    Raises:
        ConfigError: it does not exist.
    """
    if wanted not in columns:
        raise ConfigError(
            f"{of} has no column {wanted!r}{did_you_mean(wanted, columns)}",
            hint=f"It has {listed(columns)}.",
        )
    return wanted


def key_text(value: Any) -> str:
    """Return a value of the key column as a key; "" for none."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def listed(columns: Collection[str]) -> str:
    """Return the names of columns for a message: the first 20, in quotes."""
    shown = ", ".join(map(repr, islice(columns, 20)))
    return f"{shown} and {len(columns) - 20} more" if len(columns) > 20 else shown or "none"


def carry(columns: Carried) -> Carried:
    """Return the columns that a row carries, renamed where every row has a column of the name."""
    if _OTHER_NAMES.keys().isdisjoint(columns):
        return columns
    return {carried_as(name): value for name, value in columns.items()}


def carried_as(name: str) -> str:
    """Return the name under which a row carries a column."""
    return _OTHER_NAMES.get(name, name)
