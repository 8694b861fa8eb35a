"""Arrow columns as the inputs of a run, and JSON as values of Arrow columns.

A row or some of its columns are the input; a column may be a field of a struct (`image.bytes`).
Needs pyarrow (the extra `tables`).
"""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headrace.errors import InvalidRequest
from headrace.jobs.values.media_types import BINARY_TYPE, image_type
from headrace.runs.columns import carry, check_column, check_twice, input_columns, key_text
from headrace.runs.interfaces import NOTHING_CARRIED, Carried

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
        converts = {
            field.name: convert for field in kind if (convert := _to_json(field.type)) is not None
        }
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
        return _unless_null(lambda value: [pair((key(name), item(inner))) for name, inner in value])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        convert = of(kind.value_type)
        if convert is not None:
            return _unless_null(lambda value: [convert(inner) for inner in value])
    return None


def binary_body(value: dict[str, str]) -> bytes:
    """Return the bytes of the JSON object that `binary_json` makes.

    Raises:
        ValueError, LookupError, TypeError: `value` is not such an object.
    """
    return base64.b64decode(value["base64"], validate=True)


def _iso_8601(text: str) -> str:
    """Return a date or timestamp in ISO 8601, as Arrow formats it; raise ValueError if it fails."""
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
    parts = _TIMESTAMP.fullmatch(text)
    if parts is None:
        raise ValueError("not a time in ISO 8601")
    # Python's years end at 9999.
    year, rest, fraction, zone = parts.groups()
    cycles, year_of_cycle = divmod(int(year) - 2000, _CYCLE_YEARS)
    at = datetime.datetime.fromisoformat(f"{year_of_cycle + 2000}{rest}{zone or '+00:00'}")
    nanoseconds = int((fraction or "").ljust(9, "0"))
    seconds = (at - _EPOCH) // _SECOND + cycles * _CYCLE_S
    return seconds * per_second + nanoseconds * per_second // 10**9


def _unless_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


class Columns(NamedTuple):
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


def columns_of(
    schema: pa.Schema, wanted: str | None, key: str | None, content_type: str | None, of: str
) -> Columns:
    """Return which columns of a table are the input: those that `wanted` names, or all.

    A name may be that of a field of a struct: `image.bytes`.

    Raises:
        ConfigError: a column does not exist, or two have one name.
    """
    check_twice(schema.names, of)
    names = dict.fromkeys(schema.names)
    inner = {} if wanted is None else _paths(schema)
    chosen = input_columns([*names, *inner], wanted, content_type, of)
    paths = {name: [name] if name in names else inner[name] for name in chosen.names}
    if key is not None:
        check_column(names, key, of)
    carried: dict[str, pa.DataType] = {field.name: field.type for field in schema}
    for path in paths.values():
        kind = carried.pop(path[0], None)
        rest = None if kind is None else _without(kind, path[1:])
        if rest is not None:
            carried[path[0]] = rest
    carried = {name: carried[name] for name in names if name in carried}
    return Columns(paths, chosen.is_object, key, carried)


def inputs_of(
    batch: pa.RecordBatch, columns: Columns, of: str, first: int
) -> Iterator[tuple[Any, str, Carried]]:
    """Yield the input, the key and the carried columns of each row; a bad input is an error.

    Args:
        of: the name of the table, for errors.
        first: the number of the first row, for errors.
    """
    try:
        rows = _values(batch, columns)
    except (pa.ArrowException, ValueError) as error:
        if batch.num_rows > 1:
            # One bad value, such as text that is not UTF-8, must not fail the other rows.
            for place in range(batch.num_rows):
                yield from inputs_of(batch.slice(place, 1), columns, of, first + place)
            return
        wrong = InvalidRequest(f"{of}, row {first}: cannot be read: {error_text(error)}")
        yield wrong, "", NOTHING_CARRIED
        return
    for row, (value, key, carried) in enumerate(rows, first):
        if value is None:
            (column,) = columns.input
            value = InvalidRequest(f"{of}, row {row}, column {column!r}: it is null")
        yield value, key, carried


def _values(batch: pa.RecordBatch, columns: Columns) -> Iterator[tuple[Any, str, Carried]]:
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


def _paths(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the paths to the fields of structs, by their names with dots."""
    paths: dict[str, list[str]] = {}
    for field in schema:
        if types.is_struct(field.type):
            inner = pa.schema(list(field.type))
            below = {name: [name] for name in inner.names}
            for name, path in (*below.items(), *_paths(inner).items()):
                paths.setdefault(f"{field.name}.{name}", [field.name, *path])
    return paths


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


def error_text(error: Exception) -> str:
    """Return an error of Arrow on one line."""
    return " ".join(str(error).split())[:300]
