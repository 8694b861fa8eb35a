"""The first inputs of another source."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from typing_extensions import override

from headrace.runs.interfaces import Cursor, Entry, Source


class LimitedSource(Source):
    """The first inputs of a source.

    Args:
        limit: the most inputs.
    """

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
