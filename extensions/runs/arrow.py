"""A run's rows in Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from headrace.jobs.values.encoding import without_line_ends
from headrace.runs.arrow import binary_body, from_values, to_json

#: About the bytes and the number of lines that are decoded together.
BATCH_BYTES: Final = 4 << 20
BATCH_ROWS: Final = 2000
#: About the bytes and the number of rows of a row group.
GROUP_BYTES: Final = 64 << 20
GROUP_ROWS: Final = 100_000
#: An object with more keys than this is a mapping, not a struct.
FIELDS_MAX: Final = 200
#: The metadata of a column of JSON text.
JSON: Final = {b"headrace": b"json"}
#: The type of results that are not JSON.
BINARY: Final = pa.struct({"content_type": pa.string(), "bytes": pa.binary()})
_BINARY_KEYS: Final = frozenset({"content_type", "base64"})
_ERROR: Final = pa.struct({
    "type": pa.string(), "message": pa.string(), "retryable": pa.bool_(),
    "job": pa.string(), "where": pa.string(),
})  # fmt: skip
#: The columns of every row, in order; None where the type is found from the values.
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


class _WrongType(Exception):
    """A column has a value that is not of its type."""


def write_parquet(lines: Path, out: Path, carried: pa.Schema | None) -> None:
    """Write the rows of a file of JSON lines as a Parquet file.

    Args:
        carried: the types of the carried columns that the source knows.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    schema = _schema(lines, carried)
    while True:
        try:
            _write(lines, out, schema)
        except _WrongType as error:
            name = str(error)
            schema = schema.set(schema.get_field_index(name), _field(name, None))
        else:
            return


def read_parquet(path: Path, out: BinaryIO) -> None:
    """Write the rows of a Parquet file as the JSON lines that `write_parquet` read.

    Raises:
        OSError: the file cannot be read, or `out` cannot be written.
    """
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            columns = [(field.name, _json_values(batch.column(i), field))
                       for i, field in enumerate(file.schema_arrow)]  # fmt: skip
            succeeded = [value == b'"succeeded"' for value in dict(columns)["status"]]
            for at, has_result in enumerate(succeeded):
                absent = "error" if has_result else "result"
                row = {name: msgspec.Raw(values[at]) for name, values in columns if name != absent}
                out.write(without_line_ends(msgspec.json.encode(row)) + b"\n")


def is_json(field: pa.Field) -> bool:
    """Return whether a column is JSON text."""
    return (field.metadata or {}).get(b"headrace") == b"json"


def _json_values(array: pa.Array, field: pa.Field) -> list[bytes]:
    if is_json(field):
        return [b"null" if text is None else text.encode() for text in array.to_pylist()]
    values = [bytes(raw) for raw in to_json(array)]
    if field.type == BINARY:
        return [_flat_binary(msgspec.json.decode(text)) for text in values]
    return values


def _flat_binary(value: dict[str, Any] | None) -> bytes:
    """Return the JSON of a result that is bytes; both objects name its content type."""
    if value is not None:
        value = {"content_type": value["content_type"], "base64": value["bytes"]["base64"]}
    return msgspec.json.encode(value)


def _schema(lines: Path, carried: pa.Schema | None) -> pa.Schema:
    known = {name: kind for name, kind in _OWN.items() if kind is not None}
    known |= {field.name: field.type for field in carried or ()}
    found: dict[str, pa.DataType | None] = {"result": pa.null(), "timings": pa.null()}
    for rows in _batches(lines):
        names = {name for row in rows for name in row if name not in known}
        for name in sorted(names):
            kind = _type_of([row.get(name) for row in rows])
            found[name] = _common_type(found.get(name, pa.null()), kind)
    order = [*_OWN, *(field.name for field in carried or ())]
    order += [name for name in found if name not in order]
    fields = [
        pa.field(name, known[name]) if name in known else _field(name, found[name])
        for name in order
    ]
    return pa.schema(fields)


def _type_of(values: list[Any]) -> pa.DataType | None:
    """Return the type that all values fit; None where there is no such type."""
    try:
        kind = pa.array(values).type
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None
    return None if not _is_storable(kind) or _has_bools(values, kind) else kind


def _has_bools(values: Iterable[Any], kind: pa.DataType) -> bool:
    """Return whether true or false is among floats; Arrow would store it as 1.0 or 0.0."""
    if types.is_floating(kind):
        return bool in set(map(type, values))
    if types.is_list(kind):
        inner = chain.from_iterable(filter(None, values))
        return _has_floats(kind) and _has_bools(inner, kind.value_type)
    if types.is_struct(kind) and _has_floats(kind):
        objects = [value for value in values if value is not None]
        return any(
            _has_bools((value.get(field.name) for value in objects), field.type) for field in kind
        )
    return False


def _has_floats(kind: pa.DataType) -> bool:
    if types.is_list(kind):
        return _has_floats(kind.value_type)
    if types.is_struct(kind):
        return any(_has_floats(field.type) for field in kind)
    return bool(types.is_floating(kind))


def _common_type(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    """Return the type that the values of both types fit; None where there is no such type."""
    if one is None or other is None:
        return None
    try:
        schemas = [pa.schema({"": one}), pa.schema({"": other})]
        kind = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None
    return kind if _is_storable(kind) else None


def _is_storable(kind: pa.DataType) -> bool:
    """Return whether Parquet has the type, and no object in it has data for keys."""
    if types.is_list(kind):
        return _is_storable(kind.value_type)
    if types.is_struct(kind):
        fields = list(kind)
        return 0 < len(fields) <= FIELDS_MAX and all(_is_storable(one.type) for one in fields)
    return True


def _field(name: str, kind: pa.DataType | None) -> pa.Field:
    """Return the field of a column; None makes it JSON text."""
    if kind is None:
        return pa.field(name, pa.string(), metadata=JSON)
    if types.is_struct(kind) and {field.name for field in kind} == _BINARY_KEYS:
        return pa.field(name, BINARY)
    return pa.field(name, _without_null(kind))


def _without_null(kind: pa.DataType) -> pa.DataType:
    """Return the type with text in place of null, which some readers do not know."""
    if types.is_null(kind):
        return pa.string()
    if types.is_list(kind):
        return pa.list_(_without_null(kind.value_type))
    if types.is_struct(kind):
        return pa.struct({field.name: _without_null(field.type) for field in kind})
    return kind


def _write(lines: Path, out: Path, schema: pa.Schema) -> None:
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        group: list[pa.RecordBatch] = []
        for rows in _batches(lines):
            group.append(_record_batch(rows, schema))
            size: int = sum(batch.nbytes for batch in group)
            if size >= GROUP_BYTES or sum(batch.num_rows for batch in group) >= GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(group))
                group = []
        writer.write_table(pa.Table.from_batches(group, schema))
    with out.open("rb") as file:
        os.fsync(file.fileno())


def _record_batch(rows: _Rows, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        try:
            columns.append(_column([row.get(field.name) for row in rows], field))
        except (
            pa.ArrowException,
            ValueError,
            TypeError,
            LookupError,
            ArithmeticError,
            AttributeError,
        ):
            raise _WrongType(field.name) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    if is_json(field):
        encode = msgspec.json.encode
        return pa.array([None if v is None else encode(v).decode() for v in values], pa.string())
    if field.type == BINARY:
        return pa.array([None if value is None else _binary(value) for value in values], BINARY)
    return from_values(values, field.type)


def _binary(value: dict[str, str]) -> dict[str, Any]:
    if value.keys() != _BINARY_KEYS:
        raise ValueError("not bytes in base64")
    return {"content_type": value["content_type"], "bytes": binary_body(value)}


def _batches(lines: Path) -> Iterator[_Rows]:
    """Yield the rows of a file, some at a time."""
    with lines.open("rb") as file:
        rows: _Rows = []
        size = 0
        for line in file:
            rows.append(_row(line))
            size += len(line)
            if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
                yield rows
                rows, size = [], 0
        if rows:
            yield rows


def _row(line: bytes) -> dict[str, Any]:
    """Return a row's values; a value that Python does not have (1e999) stays JSON text."""
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
