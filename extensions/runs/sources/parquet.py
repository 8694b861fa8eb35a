"""Rows of Parquet files: a row or some of its columns are the input.

A column may be a field of a struct (`image.bytes`).

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

from extensions.runs.arrow import to_json, to_values
from extensions.runs.sources.files import SourceFile
from extensions.runs.sources.table import (
    Item,
    TableSource,
    carried_as,
    carry,
    check_column,
    check_twice,
    input_columns,
    key_text,
)
from headrace.errors import ConfigError, InvalidRequest
from headrace.runs.interfaces import Carried

#: About what memory holds of a file: bytes and rows that are decoded together, and the buffer of
#: each column.
BATCH_BYTES: Final = 8 << 20
BATCH_ROWS_MAX: Final = 1024
BUFFER_BYTES: Final = 1 << 20
REMOTE_BUFFER_BYTES: Final = 8 << 20


class _Columns(NamedTuple):
    """Where the columns of the input are, the key column, and what of the others is carried.

    Attributes:
        input: the path to each column of the input, by its name.
        is_object: whether the input is an object of these columns.
        carried: the type of what is left of each column without the input.
    """

    input: dict[str, list[str]]
    is_object: bool
    key: str | None
    carried: dict[str, pa.DataType]


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
        fields = [pa.field(carried_as(name), kind) for name, kind in columns.carried.items()]
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
        check_twice(schema.names, file.name)
        names = dict.fromkeys(schema.names)
        wanted, key = self.options.input, self.options.key
        inner = {} if wanted is None else _paths(schema)
        found = input_columns([*names, *inner], self.options, file.name)
        paths = {name: [name] if name in names else inner[name] for name in found.names}
        if key is not None:
            check_column(names, key, file.name)
        carried: dict[str, pa.DataType] = {field.name: field.type for field in schema}
        for path in paths.values():
            kind = carried.pop(path[0], None)
            rest = None if kind is None else _without(kind, path[1:])
            if rest is not None:
                carried[path[0]] = rest
        carried = {name: carried[name] for name in names if name in carried}
        return _Columns(paths, found.is_object, key, carried)

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
                (column,) = columns.input
                value = InvalidRequest(f"{file.name}, row {where}, column {column!r}: it is null")
            yield Item(str(where), value, [at.group, at.row + place + 1], carried, key)


def _values(batch: pa.RecordBatch, columns: _Columns) -> Iterator[tuple[Any, str, Carried]]:
    """Return the input, the key and the carried columns of each row.

    All values are converted before the first row is returned, so that errors are raised here.
    """
    arrays = {name: _array(batch, path) for name, path in columns.input.items()}
    inputs: list[Any]
    if columns.is_object:
        members = {name: to_json(array) for name, array in arrays.items()}
        inputs = [
            msgspec.Raw(msgspec.json.encode(dict(zip(members, row, strict=True))))
            for row in zip(*members.values(), strict=True)
        ]
    else:
        (array,) = arrays.values()
        inputs = [
            value if value is None or isinstance(value, (bytes, str))
            else msgspec.Raw(msgspec.json.encode(value))
            for value in to_values(array)
        ]  # fmt: skip
    carried = {
        name: to_json(column if column.type == kind else column.cast(kind))
        for name, kind in columns.carried.items()
        for column in [batch.column(name)]
    }
    keys = (
        None if columns.key is None else list(map(key_text, to_values(batch.column(columns.key))))
    )
    return (
        (
            value,
            "" if keys is None else keys[place],
            carry({other: values[place] for other, values in carried.items()}),
        )
        for place, value in enumerate(inputs)
    )


def _array(batch: pa.RecordBatch, path: list[str]) -> pa.Array:
    """Return a column, or the field of a struct at a path."""
    column = batch.column(path[0])
    return pc.struct_field(column, path[1:]) if path[1:] else column


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


def _paths(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the paths to the fields of structs, by their names with dots."""
    found: dict[str, list[str]] = {}
    for field in schema:
        if types.is_struct(field.type):
            inner = pa.schema(list(field.type))
            below = {name: [name] for name in inner.names}
            for name, path in (*below.items(), *_paths(inner).items()):
                found.setdefault(f"{field.name}.{name}", [field.name, *path])
    return found


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
