"""Rows as JSON lines into a Parquet file, and back.

Twice through the lines: the types of all columns first, then the rows. Memory holds one row group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.runs.arrow.json_values import to_json
from headrace.runs.arrow.types import BINARY, column_of, field_of, is_json, merged, type_of

#: Lines that are decoded together, and rows that become a row group, about.
BATCH_BYTES: Final = 4 << 20
BATCH_ROWS: Final = 2000
GROUP_BYTES: Final = 64 << 20
GROUP_ROWS: Final = 100_000
_ERROR: Final = pa.struct({"type": pa.string(), "message": pa.string(), "retryable": pa.bool_()})
#: The columns that every row has, in their order; those without a type have that of their values.
_OWN: Final[dict[str, pa.DataType | None]] = {
    "n": pa.int64(),
    "key": pa.string(),
    "status": pa.string(),
    "result": None,
    "error": _ERROR,
    "attempts": pa.int32(),
    "timings": None,
}

_RAWS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_Rows = list[dict[str, Any]]


class _Unlike(Exception):
    """A column has a value that is not of its type."""


def write_parquet(lines: Path, out: Path, carried: pa.Schema | None) -> None:
    """Write the rows of a file of JSON lines as a Parquet file.

    Args:
        lines: whole lines, each a row.
        out: the file; one that is there is written over.
        carried: the types of columns, where the source knows them.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    schema = _schema(lines, carried)
    while True:
        try:
            _write(lines, out, schema)
        except _Unlike as unlike:
            # What was taken for its type by most rows is JSON text for all.
            name = str(unlike)
            schema = schema.set(schema.get_field_index(name), field_of(name, None))
        else:
            return


def read_parquet(path: Path, out: BinaryIO) -> None:
    """Write the rows of a Parquet file as JSON lines, as `write_parquet` was given them.

    Raises:
        OSError: it cannot be read, or not be written.
    """
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            columns = [(field.name, _lines_of(batch.column(i), field))
                       for i, field in enumerate(file.schema_arrow)]  # fmt: skip
            succeeded = [value == b'"succeeded"' for value in dict(columns)["status"]]
            for at, well in enumerate(succeeded):
                absent = "error" if well else "result"
                row = {name: msgspec.Raw(values[at]) for name, values in columns if name != absent}
                out.write(msgspec.json.encode(row) + b"\n")


def _lines_of(array: pa.Array, field: pa.Field) -> list[bytes]:
    if is_json(field):
        return [b"null" if text is None else text.encode() for text in array.to_pylist()]
    found = [bytes(raw) for raw in to_json(array)]
    if field.type == BINARY:
        # The inner object of the bytes says what the outer one says, too.
        return [_flat(msgspec.json.decode(text)) for text in found]
    return found


def _flat(value: dict[str, Any] | None) -> bytes:
    if value is not None:
        value = {"content_type": value["content_type"], "base64": value["bytes"]["base64"]}
    return msgspec.json.encode(value)


def _schema(lines: Path, carried: pa.Schema | None) -> pa.Schema:
    """The columns of all rows and their types."""
    known = {name: kind for name, kind in _OWN.items() if kind is not None}
    known |= {field.name: field.type for field in carried or ()}
    found: dict[str, pa.DataType | None] = {"result": pa.null(), "timings": pa.null()}
    for rows in _batches(lines):
        names = {name for row in rows for name in row if name not in known}
        for name in sorted(names):
            kind = type_of([row.get(name) for row in rows])
            found[name] = merged(found.get(name, pa.null()), kind)
    order = [*_OWN, *(field.name for field in carried or ())]
    order += [name for name in found if name not in order]
    fields = [
        pa.field(name, known[name]) if name in known else field_of(name, found[name])
        for name in order
    ]
    return pa.schema(fields)


def _write(lines: Path, out: Path, schema: pa.Schema) -> None:
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        group: list[pa.RecordBatch] = []
        for rows in _batches(lines):
            group.append(_batch(rows, schema))
            if _full(group):
                writer.write_table(pa.Table.from_batches(group))
                group = []
        writer.write_table(pa.Table.from_batches(group, schema))
    with out.open("rb") as file:
        os.fsync(file.fileno())


def _batch(rows: _Rows, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        try:
            columns.append(column_of([row.get(field.name) for row in rows], field))
        except (
            pa.ArrowException,
            ValueError,
            TypeError,
            LookupError,
            ArithmeticError,
            AttributeError,
        ):
            raise _Unlike(field.name) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _full(group: list[pa.RecordBatch]) -> bool:
    rows = sum(batch.num_rows for batch in group)
    size: int = sum(batch.nbytes for batch in group)
    return rows >= GROUP_ROWS or size >= GROUP_BYTES


def _batches(lines: Path) -> Iterator[_Rows]:
    with lines.open("rb") as file:
        while found := _some(file):
            yield found


def _some(file: BinaryIO) -> _Rows:
    rows: _Rows = []
    size = 0
    for line in file:
        rows.append(_row(line))
        size += len(line)
        if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
            break
    return rows


def _row(line: bytes) -> dict[str, Any]:
    """A row's values; those that are no values here (a number such as 1e999) stay JSON text."""
    try:
        row: dict[str, Any] = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return {name: _value(raw) for name, raw in _RAWS.decode(line).items()}
    return row


def _value(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return raw
