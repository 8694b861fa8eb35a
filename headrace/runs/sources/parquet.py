"""Rows of Parquet files: one column is the input, or a field of a struct (`image.bytes`).

Needs pyarrow (the extra `tables`). Each row of a row group that cannot be read becomes an item with
an error. The rows of the other groups are read as usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types
from typing_extensions import override

from headrace.errors import ConfigError, InvalidRequest
from headrace.runs.arrow.json_values import to_json, to_values
from headrace.runs.interfaces import Carried, carried_as, carry
from headrace.runs.sources.files import SourceFile
from headrace.runs.sources.table import (
    Item,
    TableSource,
    check_column,
    input_column,
    key_text,
)

#: About what memory holds of a file: bytes and rows that are decoded together, and the buffer of
#: each column.
BATCH_BYTES: Final = 8 << 20
BATCH_ROWS_MAX: Final = 1024
BUFFER_BYTES: Final = 1 << 20
REMOTE_BUFFER_BYTES: Final = 8 << 20


class _Columns(NamedTuple):
    """The path to the input column, the key column, and the other columns."""

    input: list[str]
    key: str | None
    others: list[str]


class _At(NamedTuple):
    """Where a batch begins: the rows before its row group, that group, and the row in it."""

    first: int
    group: int
    row: int


class ParquetSource(TableSource):
    """The rows of Parquet files."""

    kind = "parquet"

    @override
    def count_in(self, file: SourceFile) -> int | None:
        with ExitStack() as stack:
            return int(_open(file, stack).metadata.num_rows)

    def carried_schema(self) -> pa.Schema:
        """Return the types of the columns that rows carry, those of the first file.

        Raises:
            ConfigError: it is not a Parquet file, or lacks the input column.
        """
        file = self.files[0]
        with ExitStack() as stack:
            schema = _open(file, stack).schema_arrow
        columns = self._columns(schema, file)
        fields = []
        for field in schema:
            is_input = field.name == columns.input[0]
            kind = _without(field.type, columns.input[1:]) if is_input else field.type
            if kind is not None:
                fields.append(pa.field(carried_as(field.name), kind))
        return pa.schema(fields)

    @override
    def read(self, file: SourceFile, at: Any) -> Iterator[Item]:
        # A place is `[row group, rows of it]`.
        group, skipped = (0, 0) if at is None else (int(at[0]), int(at[1]))
        with ExitStack() as stack:
            table = _open(file, stack)
            columns = self._columns(table.schema_arrow, file)
            first = sum(table.metadata.row_group(before).num_rows for before in range(group))
            for index in range(group, table.metadata.num_row_groups):
                rows = table.metadata.row_group(index).num_rows
                at_row = skipped
                try:
                    for batch in _batches(table, index, skipped):
                        yield from self._items(file, batch, columns, _At(first, index, at_row))
                        at_row += batch.num_rows
                except (pa.ArrowException, OSError) as error:
                    _raise_unless_data(file, error)
                    yield from _lost(file, index, range(at_row, rows), first, error)
                first += rows
                skipped = 0

    def _columns(self, schema: pa.Schema, file: SourceFile) -> _Columns:
        names = schema.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"{file.name}: two columns are called {twice!r}")
        wanted = self.options.input
        path = None if wanted is None or wanted in names else _path(schema, wanted)
        if path is None:
            known = names if wanted is None else [*names, *_inner_names(schema)]
            path = [input_column(known, wanted, file.name)]
        key = self.options.key
        if key is not None:
            check_column(names, key, file.name)
        return _Columns(path, key, [name for name in names if name != path[0]])

    def _items(
        self, file: SourceFile, batch: pa.RecordBatch, columns: _Columns, at: _At
    ) -> Iterator[Item]:
        try:
            found = _values(batch, columns)
        except (pa.ArrowException, ValueError) as error:
            if batch.num_rows > 1:
                # One bad value, such as text that is not UTF-8, must not fail the other rows.
                for place in range(batch.num_rows):
                    row = at._replace(row=at.row + place)
                    yield from self._items(file, batch.slice(place, 1), columns, row)
                return
            where = at.first + at.row
            wrong = InvalidRequest(f"{file.name}, row {where}: cannot be read: {_text(error)}")
            yield Item(str(where), wrong, [at.group, at.row + 1])
            return
        for place, (value, key, carried) in enumerate(found):
            where = at.first + at.row + place
            if value is None:
                column = ".".join(columns.input)
                value = InvalidRequest(f"{file.name}, row {where}, column {column!r}: it is null")
            yield Item(str(where), value, [at.group, at.row + place + 1], carried, key)


def _values(batch: pa.RecordBatch, columns: _Columns) -> Iterator[tuple[Any, str, Carried]]:
    """Return the input, the key and the carried columns of each row.

    All values are converted before the first row is returned, so that errors are raised here.
    """
    name, inner = columns.input[0], columns.input[1:]
    whole = batch.column(name)
    inputs = to_values(pc.struct_field(whole, inner) if inner else whole)
    carried = {other: to_json(batch.column(other)) for other in columns.others}
    rest = _without(whole.type, inner) if inner else None
    if rest is not None:
        carried[name] = to_json(whole.cast(rest))
    keys = (
        None if columns.key is None else list(map(key_text, to_values(batch.column(columns.key))))
    )
    sent = [
        value if value is None or isinstance(value, (bytes, str))
        else msgspec.Raw(msgspec.json.encode(value))
        for value in inputs
    ]  # fmt: skip
    return (
        (
            value,
            "" if keys is None else keys[place],
            carry({other: values[place] for other, values in carried.items()}),
        )
        for place, value in enumerate(sent)
    )


def _open(file: SourceFile, stack: ExitStack) -> pq.ParquetFile:
    """Open a Parquet file; the stack closes it."""
    stream = stack.enter_context(closing(file.open()))
    buffer = BUFFER_BYTES if file.local else REMOTE_BUFFER_BYTES
    try:
        # With a buffer and without pre_buffer, Arrow reads the pages of a row group as needed.
        table = pq.ParquetFile(stream, buffer_size=buffer, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"{file.name} is not a Parquet file, or is cut off: {_text(error)}",
            hint="A Parquet file is complete only when its writer was closed: create it again.",
        ) from None
    return stack.enter_context(closing(table))


def _batches(table: pq.ParquetFile, group: int, skipped: int) -> Iterator[pa.RecordBatch]:
    """Yield a row group's rows in batches, without the first `skipped` rows."""
    meta = table.metadata.row_group(group)
    each = max(1, meta.total_byte_size // max(1, meta.num_rows))
    size = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES // each))
    for batch in table.iter_batches(size, row_groups=[group]):
        if skipped >= batch.num_rows:
            skipped -= batch.num_rows
        else:
            yield batch.slice(skipped)
            skipped = 0


def _lost(
    file: SourceFile, group: int, rows: range, first: int, error: Exception
) -> Iterator[Item]:
    """Yield an item with an error for each row of a row group that cannot be read."""
    for row in rows:
        where = first + row
        wrong = InvalidRequest(
            f"{file.name}, row {where}: row group {group} is broken: {_text(error)}",
            hint="Create the file again.",
        )
        yield Item(str(where), wrong, [group, row + 1])


def _raise_unless_data(file: SourceFile, error: Exception) -> None:
    """Raise an error that concerns the whole file, and not the data of some rows."""
    if isinstance(error, pa.ArrowNotImplementedError):
        raise ConfigError(f"{file.name}: pyarrow cannot read this: {_text(error)}") from None
    # Arrow reports broken data as an OSError without a number.
    if isinstance(error, OSError) and error.errno is not None:
        raise ConfigError(f"{file.name}: cannot be read: {error.strerror}") from None


def _path(schema: pa.Schema, wanted: str) -> list[str] | None:
    """Return the names that lead to a field of a struct; None if it does not exist."""
    for field in schema:
        if wanted.startswith(f"{field.name}.") and types.is_struct(field.type):
            rest = wanted[len(field.name) + 1 :]
            inner = pa.schema(list(field.type))
            below = [rest] if rest in inner.names else _path(inner, rest)
            if below is not None:
                return [field.name, *below]
    return None


def _inner_names(schema: pa.Schema) -> Iterator[str]:
    for field in schema:
        if types.is_struct(field.type):
            inner = pa.schema(list(field.type))
            for name in (*inner.names, *_inner_names(inner)):
                yield f"{field.name}.{name}"


def _without(kind: pa.DataType, path: list[str]) -> pa.DataType | None:
    """Return a type without the field at a path; None if nothing is left."""
    if not path:
        return None
    fields = []
    for field in kind:
        inner = _without(field.type, path[1:]) if field.name == path[0] else field.type
        if inner is not None:
            fields.append(field.with_type(inner))
    return pa.struct(fields) if fields else None


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
