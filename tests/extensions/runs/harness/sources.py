"""What every source of a run must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from extensions.runs.registry import source_for
from extensions.runs.sources.options import SourceOptions
from headrace.errors import HeadraceError
from headrace.runs.interfaces import Entry, Source


def opened(named: object, **options: Any) -> Source:
    """Return the source with this name, as `headrace run` opens it."""
    return source_for(str(named), SourceOptions(**options))


def comparable(entry: Entry) -> dict[str, Any]:
    """Return an entry as a dictionary that can be compared."""
    given = entry.input
    if isinstance(given, HeadraceError):
        given = ("error", given.code, given.message)
    elif isinstance(given, msgspec.Raw):
        given = ("json", msgspec.json.decode(given))
    carried = {name: msgspec.json.decode(value) for name, value in entry.carried.items()}
    return {
        "n": entry.n, "key": entry.key, "input": given, "carried": carried,
        "cursor": entry.cursor, "content_type": entry.content_type,
    }  # fmt: skip


def read_all(source: Source) -> list[dict[str, Any]]:
    return [comparable(entry) for entry in source.entries(None, 0)]


def inputs(source: Source) -> list[Any]:
    """Return the inputs; a bad one is its error."""
    return [entry["input"] for entry in read_all(source)]


def errors(source: Source) -> list[str]:
    """Return the messages of bad inputs."""
    return [
        given[2] for given in inputs(source) if isinstance(given, tuple) and given[0] == "error"
    ]


def resumes_everywhere(open_source: Callable[[], Source], step: int = 1) -> list[dict[str, Any]]:
    """Check that a new source continues behind every cursor as one pass does; return its entries.

    Args:
        step: 2 checks every second cursor, and so on, if opening it takes long.
    """
    entries = read_all(open_source())
    assert [entry["n"] for entry in entries] == list(range(len(entries)))
    for entry in entries[::step]:
        # As it is after a checkpoint.
        cursor = msgspec.json.decode(msgspec.json.encode(entry["cursor"]))
        after = entry["n"] + 1
        rest = [comparable(later) for later in open_source().entries(cursor, after)]
        assert rest == entries[after:]
    assert open_source().describe() == open_source().describe()
    return entries
