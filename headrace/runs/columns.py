"""The columns of a table: which are the input, and under which names rows carry the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from headrace.config.suggestions import did_you_mean
from headrace.errors import ConfigError
from headrace.jobs.values.media_types import is_json
from headrace.runs.interfaces import Carried

#: The columns of every row. A carried column with such a name gets another one: see `carry`.
OWN_COLUMNS: Final = ("n", "key", "status", "result", "error", "attempts", "timings")
_OTHER_NAMES: Final = {name: f"input.{name}" for name in OWN_COLUMNS}


class InputColumns(NamedTuple):
    """The columns of a row that are the input: an object of them, or the value of the only one."""

    names: Sequence[str]
    is_object: bool


def input_columns(
    columns: Collection[str], wanted: str | None, content_type: str | None, of: str
) -> InputColumns:
    """Return the columns that are the input: those that the user named, else all of them.

    A column whose own name has a comma can be named alone.

    Raises:
        ConfigError: a named column does not exist, or the content type is for a single value.
    """
    columns = dict.fromkeys(columns)
    if wanted is not None:
        names = picked(wanted, columns)
        for name in names:
            check_column(columns, name, of)
        if not is_list(wanted, columns):
            return InputColumns(names, is_object=False)
    kind = media_type(content_type)
    if kind and not is_json(kind):
        raise ConfigError(
            f"--content-type {content_type} means nothing for an input of several columns,"
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
    """Check that every column has a name of its own; raise ConfigError if two have the same."""
    if len(set(columns)) == len(columns):
        return
    twice = next(name for name, count in Counter(columns).items() if count > 1)
    raise ConfigError(f"{of}: two columns are called {twice!r}", hint="Rename one of them.")


def check_column(columns: Collection[str], wanted: str, of: str) -> str:
    """Return the column that the user named; raise ConfigError if it does not exist."""
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
