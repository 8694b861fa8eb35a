"""A run's rows in Parquet files: JSON as values of Arrow columns, and back."""

from __future__ import annotations

import base64
import datetime
import os
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from headrace.jobs.values.encoding import without_line_ends
from headrace.jobs.values.media_types import BINARY_TYPE, image_type

#: Converts one value; None where nothing has to be converted.
_Convert: TypeAlias = Callable[[Any], Any] | None

_ENCODER: Final = msgspec.json.Encoder()
#: A timestamp in ISO 8601: year, whole seconds, the digits of the fraction, the zone.
_TIMESTAMP: Final = re.compile(
    r"([+-]?\d{4,})(-\d\d-\d\dT.*?)(?:\.(\d{1,9}))?(Z|[+-]\d{2}:?\d{2})?"
)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SECOND: Final = datetime.timedelta(seconds=1)
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S: Final = 86_400
#: The calendar repeats itself after 400 years.
_CYCLE_YEARS: Final = 400
_CYCLE_S: Final = 146_097 * _DAY_S


def to_json(array: pa.Array) -> list[msgspec.Raw]:
    """Return each value of a column as JSON text."""
    encode = _ENCODER.encode
    return [msgspec.Raw(encode(value)) for value in _python_values(array, _to_json(array.type))]


def to_values(array: pa.Array) -> list[Any]:
    """Return each value of a column as Python's JSON types; a column of bytes stays bytes."""
    return _python_values(array, None if _is_binary(array.type) else _to_json(array.type))


def binary_json(body: bytes) -> dict[str, str]:
    """Return the JSON object for bytes."""
    return {
        "content_type": image_type(body) or BINARY_TYPE,
        "base64": base64.b64encode(body).decode(),
    }


def from_values(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Make a column of type `kind` from the values that `to_json` made of one.

    Raises:
        pa.ArrowException, ValueError, TypeError, LookupError: a value is not of that type.
    """
    convert = _from_json(kind)
    return pa.array(values if convert is None else [convert(value) for value in values], kind)


def _python_values(array: pa.Array, convert: _Convert) -> list[Any]:
    values = array.cast(_map_type(array.type, _python_type)).to_pylist()
    return values if convert is None else [convert(value) for value in values]


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _map_type(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type whose innermost types are changed."""
    if types.is_struct(kind):
        return pa.struct([field.with_type(_map_type(field.type, change)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_map_type(kind.key_type, change), _map_type(kind.item_type, change))
    if types.is_fixed_size_list(kind):
        return pa.list_(_map_type(kind.value_type, change), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_map_type(kind.value_type, change))
    if types.is_list(kind):
        return pa.list_(_map_type(kind.value_type, change))
    return change(kind)


def _python_type(kind: pa.DataType) -> pa.DataType:
    """Return the type whose Python values `_to_json` converts.

    Arrow formats dates and times: Python's types have no nanoseconds, and no years beyond 9999.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return _map_type(kind.storage_type, _python_type)
    if types.is_dictionary(kind):
        return _map_type(kind.value_type, _python_type)
    if types.is_duration(kind):
        return pa.int64()
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return pa.string()
    return kind


def _to_json(kind: pa.DataType) -> _Convert:
    """Return the conversion of Python values of a type to JSON types."""
    if isinstance(kind, pa.BaseExtensionType):
        return _to_json(kind.storage_type)
    if _is_binary(kind):
        return _unless_null(binary_json)
    if types.is_timestamp(kind) or types.is_date(kind):
        return _unless_null(_iso_8601)
    if types.is_struct(kind):
        converts = {field.name: one for field in kind if (one := _to_json(field.type)) is not None}
        if not converts:
            return None
        return _unless_null(
            lambda value: {name: converts.get(name, _same)(v) for name, v in value.items()}
        )
    return _inner_convert(kind, _to_json, pair=list)


def _from_json(kind: pa.DataType) -> _Convert:
    """Return the conversion of JSON types to the Python values that Arrow reads as a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _from_json(kind.storage_type)
    if _is_binary(kind):
        return _unless_null(binary_body)
    if types.is_time(kind):
        return _unless_null(lambda text: _ticks("1970-01-01T" + text, _PER_SECOND[kind.unit]))
    if types.is_timestamp(kind):
        return _unless_null(lambda text: _ticks(text, _PER_SECOND[kind.unit]))
    if types.is_date(kind):
        unit = "s" if types.is_date32(kind) else "ms"
        per_tick = _DAY_S if unit == "s" else 1
        return _unless_null(lambda text: _ticks(text + "T00:00:00", _PER_SECOND[unit]) // per_tick)
    if types.is_decimal(kind):
        return _unless_null(Decimal)
    if types.is_struct(kind):
        # A name that the struct does not have raises KeyError; Arrow would drop the value.
        converts = {field.name: _from_json(field.type) or _same for field in kind}
        return _unless_null(lambda value: {name: converts[name](v) for name, v in value.items()})
    return _inner_convert(kind, _from_json, pair=tuple)


def _inner_convert(
    kind: pa.DataType,
    of: Callable[[pa.DataType], _Convert],
    *,
    pair: type[list[Any]] | type[tuple[Any, ...]],
) -> _Convert:
    """Return the conversion of a list, map or dictionary, given that of its values."""
    if types.is_dictionary(kind):
        return of(kind.value_type)
    if types.is_map(kind):
        key, item = (of(inner) or _same for inner in (kind.key_type, kind.item_type))
        return _unless_null(lambda value: [pair((key(one[0]), item(one[1]))) for one in value])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        convert = of(kind.value_type)
        if convert is not None:
            return _unless_null(lambda value: [convert(one) for one in value])
    return None


def binary_body(value: dict[str, str]) -> bytes:
    """Return the bytes of the JSON object that `binary_json` makes.

    Raises:
        ValueError, LookupError, TypeError: `value` is not such an object.
    """
    return base64.b64decode(value["base64"], validate=True)


def _iso_8601(text: str) -> str:
    """Return a date or timestamp as Arrow formats it in ISO 8601.

    Raises:
        ValueError: Arrow cannot format it.
    """
    if text.startswith("<"):
        raise ValueError(f"a date or time has no text: {text.strip('<>')}")
    date, space, time = text.partition(" ")
    if len(date) != 10:
        # A year with more than four digits has a sign.
        date = date if date.startswith("-") else f"+{date}"
    if not space:
        return date
    if time[-5:-4] in ("+", "-"):
        time = f"{time[:-2]}:{time[-2:]}"
    return f"{date}T{time}"


def _ticks(text: str, per_second: int) -> int:
    """Return a timestamp in units of 1 / `per_second` s since 1970; without a zone it is UTC.

    Python's own parser keeps no nanoseconds. Arrow's takes five times as long for one value. When
    it casts a whole column, it fails on the values of a struct that is null.
    """
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError("not a time in ISO 8601")
    # Python's years end at 9999.
    cycles, year = divmod(int(found[1]) - 2000, _CYCLE_YEARS)
    at = datetime.datetime.fromisoformat(f"{year + 2000}{found[2]}{found[4] or '+00:00'}")
    fraction = int((found[3] or "").ljust(9, "0"))
    seconds = (at - _EPOCH) // _SECOND + cycles * _CYCLE_S
    return seconds * per_second + fraction * per_second // 10**9


def _unless_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


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
