"""Rows of Parquet files: one column is the input, or a field of a struct (`image.bytes`).

Needs pyarrow (the extra `tables`). A row group that is broken becomes one item with an error for
each of its rows that cannot be read; those of the other groups are read as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from headrace.errors import ConfigError, InvalidRequest
from headrace.runs.arrow.json_values import to_json, to_values
from headrace.runs.interfaces import Carried, carried_as, carry
from headrace.runs.sources.files import SourceFile
from headrace.runs.sources.options import SourceOptions
from headrace.runs.sources.table import Item, TableSource, bad, chosen, key_column, key_text

#: What is held of a file at a time, about: rows that are decoded together, and bytes of a column.
BATCH_BYTES: Final = 8 << 20
BATCH_ROWS_MAX: Final = 1024
BUFFER_BYTES: Final = 1 << 20
REMOTE_BUFFER_BYTES: Final = 8 << 20


class _Columns(NamedTuple):
    """Which column is the input, by the names that lead to it, and which the key."""

    input: list[str]
    key: str | None
    others: list[str]


class _At(NamedTuple):
    """Where a batch begins: the rows of the groups before its own, its group, the row in that."""

    first: int
    group: int
    row: int


class ParquetReader:
    """Reads Parquet files.

    Args:
        options: which column is the input, and which the key.
    """

    kind: Final = "parquet"

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def count(self, blob: SourceFile) -> int | None:
        """The rows, as the end of the file says."""
        with ExitStack() as stack:
            return int(_opened(blob, stack).metadata.num_rows)

    def carried_schema(self, blob: SourceFile) -> pa.Schema:
        """The types of the columns that a file's rows carry.

        Raises:
            ConfigError: it is no such table, or lacks the input's column.
        """
        with ExitStack() as stack:
            schema = _opened(blob, stack).schema_arrow
        columns = self._columns(schema, blob)
        fields = []
        for field in schema:
            is_input = field.name == columns.input[0]
            kind = _without(field.type, columns.input[1:]) if is_input else field.type
            if kind is not None:
                fields.append(pa.field(carried_as(field.name), kind))
        return pa.schema(fields)

    def read(self, blob: SourceFile, at: Any) -> Iterator[Item]:
        """The rows behind a place: `[row group, rows of it]`.

        Raises:
            ConfigError: the file is no such table, or lacks the column.
            Conflict: it has changed.
        """
        group, skipped = (0, 0) if at is None else (int(at[0]), int(at[1]))
        with ExitStack() as stack:
            file = _opened(blob, stack)
            columns = self._columns(file.schema_arrow, blob)
            first = sum(file.metadata.row_group(before).num_rows for before in range(group))
            for index in range(group, file.metadata.num_row_groups):
                rows = file.metadata.row_group(index).num_rows
                at_row = skipped
                try:
                    for batch in _batches(file, index, skipped):
                        yield from self._items(blob, batch, columns, _At(first, index, at_row))
                        at_row += batch.num_rows
                except (pa.ArrowException, OSError) as error:
                    _refuse_all(blob, error)
                    yield from _lost(blob, index, range(at_row, rows), first, error)
                first += rows
                skipped = 0

    def _columns(self, schema: pa.Schema, blob: SourceFile) -> _Columns:
        names = schema.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"{blob.name}: two columns are called {twice!r}")
        wanted = self._options.input
        path = None if wanted is None or wanted in names else _path(schema, wanted)
        if path is None:
            known = names if wanted is None else [*names, *_inner_names(schema)]
            path = [chosen(known, wanted, blob.name)]
        key = key_column(names, self._options.key, blob.name)
        return _Columns(path, key, [name for name in names if name != path[0]])

    def _items(
        self, blob: SourceFile, batch: pa.RecordBatch, columns: _Columns, at: _At
    ) -> Iterator[Item]:
        try:
            found = _spoken(batch, columns)
        except (pa.ArrowException, ValueError) as error:
            if batch.num_rows > 1:
                # One value spoils it, such as text that is not UTF-8: the other rows are well.
                for place in range(batch.num_rows):
                    row = at._replace(row=at.row + place)
                    yield from self._items(blob, batch.slice(place, 1), columns, row)
                return
            where = at.first + at.row
            wrong = InvalidRequest(f"{blob.name}, row {where}: cannot be read: {_said(error)}")
            yield bad(wrong, str(where), [at.group, at.row + 1])
            return
        for place, (value, key, carried) in enumerate(found):
            where = at.first + at.row + place
            if value is None:
                column = ".".join(columns.input)
                value = InvalidRequest(f"{blob.name}, row {where}, column {column!r}: it is null")
            yield Item(str(where), value, [at.group, at.row + place + 1], carried, key)


class ParquetSource(TableSource):
    """The rows of Parquet files.

    Args:
        blobs: the files, in order.
        options: as the user gave them.
    """

    def __init__(self, blobs: Sequence[SourceFile], options: SourceOptions) -> None:
        self._parquet = ParquetReader(options)
        self._first = blobs[0]
        super().__init__(blobs, self._parquet, options)

    def carried_schema(self) -> pa.Schema:
        """The types of what rows carry, by the first file.

        Raises:
            ConfigError: it is no such table, or lacks the input's column.
        """
        return self._parquet.carried_schema(self._first)


def _spoken(batch: pa.RecordBatch, columns: _Columns) -> Iterator[tuple[Any, str, Carried]]:
    """The input, the key and what is carried of each row; all is converted before the first."""
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


def _opened(blob: SourceFile, stack: ExitStack) -> pq.ParquetFile:
    """A Parquet file; closed by the stack."""
    file = stack.enter_context(closing(blob.open()))
    buffer = BUFFER_BYTES if blob.local else REMOTE_BUFFER_BYTES
    try:
        # Without pre_buffer and with a buffer, a row group is read as its pages are needed.
        found = pq.ParquetFile(file, buffer_size=buffer, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"{blob.name} is no Parquet file, or is cut off: {_said(error)}",
            hint="A Parquet file is complete only when its writer was closed: write it anew.",
        ) from None
    return stack.enter_context(closing(found))


def _batches(file: pq.ParquetFile, group: int, skipped: int) -> Iterator[pa.RecordBatch]:
    """A row group's rows, as many at a time as memory is to have, without the first few."""
    meta = file.metadata.row_group(group)
    each = max(1, meta.total_byte_size // max(1, meta.num_rows))
    size = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES // each))
    for batch in file.iter_batches(size, row_groups=[group]):
        if skipped >= batch.num_rows:
            skipped -= batch.num_rows
        else:
            yield batch.slice(skipped)
            skipped = 0


def _lost(
    blob: SourceFile, group: int, rows: range, first: int, error: Exception
) -> Iterator[Item]:
    """The rows of a row group that cannot be read from some row on."""
    for row in rows:
        where = first + row
        wrong = InvalidRequest(
            f"{blob.name}, row {where}: row group {group} is broken: {_said(error)}",
            hint="Write the file anew.",
        )
        yield bad(wrong, str(where), [group, row + 1])


def _refuse_all(blob: SourceFile, error: Exception) -> None:
    """What is no fault of single rows."""
    if isinstance(error, pa.ArrowNotImplementedError):
        raise ConfigError(f"{blob.name}: pyarrow cannot read this: {_said(error)}") from None
    # Arrow's own errors have no number: those are broken data, and the system's are not.
    if isinstance(error, OSError) and error.errno is not None:
        raise ConfigError(f"{blob.name}: cannot be read: {error.strerror}") from None


def _path(schema: pa.Schema, wanted: str) -> list[str] | None:
    """The names that lead to a field of a struct; None where there is no such field."""
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
    """A type without the field that a path leads to; None where nothing is left."""
    if not path:
        return None
    fields = []
    for field in kind:
        inner = _without(field.type, path[1:]) if field.name == path[0] else field.type
        if inner is not None:
            fields.append(field.with_type(inner))
    return pa.struct(fields) if fields else None


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
