"""Rows of Parquet files: a row or some of its columns are the input.

A column may be a field of a struct (`image.bytes`).

Needs pyarrow (the extra `tables`). Each row of a row group that cannot be read becomes an item with
an error. The rows of the other groups are read as usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from extensions.runs.sources.files import SourceFile
from extensions.runs.sources.table import Item, TableSource
from headrace.errors import ConfigError, InvalidRequest
from headrace.runs.arrow import Columns, columns_of, error_text, inputs_of
from headrace.runs.columns import carried_as

#: About what memory holds of a file: bytes and rows that are decoded together, and the buffer of
#: each column.
BATCH_BYTES: Final = 8 << 20
BATCH_ROWS_MAX: Final = 1024
BUFFER_BYTES: Final = 1 << 20
REMOTE_BUFFER_BYTES: Final = 8 << 20


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

    def _columns(self, schema: pa.Schema, file: SourceFile) -> Columns:
        options = self.options
        return columns_of(schema, options.input, options.key, options.content_type, file.name)

    def _items(
        self, file: SourceFile, batch: pa.RecordBatch, columns: Columns, at: _At
    ) -> Iterator[Item]:
        first = at.first + at.row
        for place, (value, key, carried) in enumerate(inputs_of(batch, columns, file.name, first)):
            yield Item(str(first + place), value, [at.group, at.row + place + 1], carried, key)


def _open(file: SourceFile, stack: ExitStack) -> pq.ParquetFile:
    """Open a Parquet file; the stack closes it."""
    stream = stack.enter_context(closing(file.open()))
    buffer = BUFFER_BYTES if file.local else REMOTE_BUFFER_BYTES
    try:
        # With a buffer and without pre_buffer, Arrow reads the pages of a row group as needed.
        table = pq.ParquetFile(stream, buffer_size=buffer, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"{file.name} is not a Parquet file, or is cut off: {error_text(error)}",
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
            f"{file.name}, row {where}: row group {group} is broken: {error_text(error)}",
            hint="Create the file again.",
        )
        yield Item(str(where), wrong, [group, row + 1])


def _raise_unless_data(file: SourceFile, error: Exception) -> None:
    """Raise an error that concerns the whole file, and not the data of some rows."""
    if isinstance(error, pa.ArrowNotImplementedError):
        raise ConfigError(f"{file.name}: pyarrow cannot read this: {error_text(error)}") from None
    # Arrow reports broken data as an OSError without a number.
    if isinstance(error, OSError) and error.errno is not None:
        raise ConfigError(f"{file.name}: cannot be read: {error.strerror}") from None
