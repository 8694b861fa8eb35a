"""How a source is read, and how much of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from typing_extensions import override

from headrace.errors import ConfigError, Conflict
from headrace.runs.interfaces import Cursor, Entry, Source


def check_no_more(
    source: Source, end: Cursor | None, *, whole: bool, problem: str, hint: str
) -> None:
    """Read a source again up to the end of a run.

    Args:
        problem: the message of the error if a whole run had fewer entries.

    Raises:
        Conflict: the source has other entries, or more of them.
    """
    if next(source.entries(end, 0), None) is not None and whole:
        raise Conflict(problem, hint=hint)


class LimitedSource(Source):
    """The first inputs of a source."""

    def __init__(self, source: Source, limit: int) -> None:
        self._source = source
        self._limit = limit

    @override
    def describe(self) -> dict[str, Any]:
        return {**self._source.describe(), "limit": self._limit}

    @override
    def count(self) -> int | None:
        count = self._source.count()
        return None if count is None else min(count, self._limit)

    @override
    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        return islice(self._source.entries(after, n), max(0, self._limit - n))

    @override
    def check_ended(self, end: Cursor | None, *, whole: bool = True) -> None:
        self._source.check_ended(end, whole=False)


#: Options that do not change which entries a source has. With another delimiter the first row lacks
#: the columns, so a run that began before the option existed still resumes.
_NOT_DESCRIBED: Final = frozenset({"output", "by_ref", "delimiter"})


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a source is read; each kind refuses the options that mean nothing for it.

    Attributes:
        input: the column that is the input, if there are columns; the others are carried.
        key: the column that names the input.
        glob: in a folder, read only files whose path below it matches one of these.
        content_type: the media type of every input that is a file or bytes.
        delimiter: what separates the columns of a CSV file: one character, or a name
            (csv.py: DELIMITERS).
        output: where the rows go; a folder or pattern that finds it there skips it.
        by_ref: inputs are sent as references to files, which the server reads.
    """

    input: str | None = None
    key: str | None = None
    glob: tuple[str, ...] = ()
    content_type: str | None = None
    delimiter: str | None = None
    output: str = ""
    by_ref: bool = False

    def described(self) -> dict[str, Any]:
        """Return the options that are set, for `Source.describe`."""
        values = msgspec.to_builtins(self)
        return {
            name: value for name, value in values.items() if value and name not in _NOT_DESCRIBED
        }

    def refuse(self, *names: str, of: str) -> None:
        """Refuse options that mean nothing for a source.

        Raises:
            ConfigError: one of them is set.
        """
        for name in names:
            if getattr(self, name):
                raise ConfigError(
                    f"--{name.replace('_', '-')} means nothing for {of}", hint="Leave it out."
                )
