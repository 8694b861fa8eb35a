"""The tables that Ray's actors get and return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.client.inputs import encode_input
from headrace.errors import HeadraceError, RequestError
from headrace.runs.arrow import columns_of, inputs_of
from headrace.runs.columns import carried_as

#: How many rows are converted together.
BATCH_ROWS: Final = 1024
_ERROR: Final = pa.struct({
    "type": pa.string(), "message": pa.string(), "retryable": pa.bool_(),
    "job": pa.string(), "where": pa.string(),
})  # fmt: skip


class Columns(NamedTuple):
    """Which columns are the input and the key, and the type of the input."""

    input: str | None
    key: str | None
    content_type: str | None


class Given(NamedTuple):
    """A row: its key, and its input as JSON or why it cannot be sent."""

    key: str
    input: msgspec.Raw | HeadraceError


class Ended(NamedTuple):
    """How a row has ended; `result` is JSON text."""

    status: str
    attempts: int = 0
    result: bytes | None = None
    error: dict[str, Any] | None = None


def rejected(error: HeadraceError) -> Ended:
    """Return the end of a row that cannot be sent."""
    return Ended("rejected", error={
        "type": error.code, "message": error.message_with_hint, "retryable": error.retryable,
    })  # fmt: skip


def inputs(table: pa.Table, columns: Columns) -> Iterator[Given]:
    """Yield the rows of a table.

    Raises:
        ConfigError: it lacks a column.
    """
    found = columns_of(
        table.schema, columns.input, columns.key, columns.content_type, "the dataset"
    )._replace(carried={})
    first = 0
    for batch in table.combine_chunks().to_batches(BATCH_ROWS):
        for value, key, _ in inputs_of(batch, found, "the dataset", first):
            yield Given(key, _json(value, columns.content_type))
        first += batch.num_rows


def _json(value: Any, content_type: str | None) -> msgspec.Raw | HeadraceError:
    if isinstance(value, (msgspec.Raw, HeadraceError)):
        return value
    try:
        return msgspec.Raw(encode_input(value, content_type))
    except RequestError as error:
        return error.kept()


def with_ends(table: pa.Table, ends: Sequence[Ended]) -> pa.Table:
    """Return a table with the columns `status`, `result`, `error` and `attempts`."""
    found = table.rename_columns([carried_as(name) for name in table.column_names])
    results = [None if end.result is None else end.result.decode() for end in ends]
    added = {
        "status": pa.array([end.status for end in ends], pa.string()),
        "result": pa.array(results, pa.large_string()),
        "error": pa.array([end.error for end in ends], _ERROR),
        "attempts": pa.array([end.attempts for end in ends], pa.int32()),
    }
    for name, column in added.items():
        found = found.append_column(name, column)
    return found
