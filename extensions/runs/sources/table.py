"""A source of files of one kind, each with many inputs: rows of tables, samples of tar shards.

files.py knows which files these are, and a subclass of `TableSource` how one is read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import msgspec
from typing_extensions import override

from extensions.runs.sources.files import SourceFile, short_names, versions
from extensions.runs.sources.options import SourceOptions
from headrace.errors import Conflict
from headrace.runs.interfaces import NOTHING_CARRIED, Carried, Cursor, Entry, Source

#: The most remote files that are counted, which reads their ends, only to show progress.
COUNTED_REMOTE_MAX: Final = 32
#: The place behind all inputs of a file.
END: Final = "end"


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
