"""The Arrow type of a column, from the JSON values that it has.

A column whose values do not agree on one type is JSON text: nothing is lost by it. Its field says
so in its metadata (`headrace: json`), so that who reads the file back knows.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import types

from headrace.runs.arrow.json_values import from_values

#: An object with more keys than this has data for keys, and is no struct.
FIELDS_MAX: Final = 200
JSON: Final = {b"headrace": b"json"}
#: A result that is not JSON: its bytes, and what they are.
BINARY: Final = pa.struct({"content_type": pa.string(), "bytes": pa.binary()})
_BINARY_KEYS: Final = frozenset({"content_type", "base64"})


def type_of(values: list[Any]) -> pa.DataType | None:
    """The type of some values; None where they have none in common."""
    try:
        kind = _sound(pa.array(values).type)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None
    return None if kind is None or _has_bools(values, kind) else kind


def _has_bools(values: Iterable[Any], kind: pa.DataType) -> bool:
    """Whether true or false stands among floats: Arrow takes it for 1.0 or 0.0 behind one."""
    if types.is_floating(kind):
        return bool in set(map(type, values))
    if types.is_list(kind):
        within = chain.from_iterable(filter(None, values))
        return _has_floats(kind) and _has_bools(within, kind.value_type)
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


def merged(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    """The type that has the values of both; None where there is none."""
    if one is None or other is None or one == other:
        return None if other is None else one
    if types.is_null(one) or types.is_null(other):
        return other if types.is_null(one) else one
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if types.is_list(one) and types.is_list(other):
        inner = merged(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if types.is_struct(one) and types.is_struct(other):
        return _sound(_joined(one, other))
    return None


def field_of(name: str, kind: pa.DataType | None) -> pa.Field:
    """The field of a column; None stands for JSON text."""
    if kind is None:
        return pa.field(name, pa.string(), metadata=JSON)
    if types.is_struct(kind) and {field.name for field in kind} == _BINARY_KEYS:
        return pa.field(name, BINARY)
    return pa.field(name, _without_null(kind))


def is_json(field: pa.Field) -> bool:
    """Whether a column is JSON text."""
    return (field.metadata or {}).get(b"headrace") == b"json"


def column_of(values: list[Any], field: pa.Field) -> pa.Array:
    """The column of some values.

    Raises:
        ValueError, TypeError, LookupError, OverflowError: a value is not of the field's type.
    """
    if is_json(field):
        encode = msgspec.json.encode
        return pa.array([None if v is None else encode(v).decode() for v in values], pa.string())
    if field.type == BINARY:
        return pa.array([None if value is None else _binary(value) for value in values], BINARY)
    return from_values(values, field.type)


def _binary(value: dict[str, str]) -> dict[str, Any]:
    if value.keys() != _BINARY_KEYS:
        raise ValueError("no bytes in base64")
    try:
        body = base64.b64decode(value["base64"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"no bytes in base64: {error}") from None
    return {"content_type": value["content_type"], "bytes": body}


def _joined(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    fields = {field.name: field.type for field in one}
    for field in other:
        kind = merged(fields.get(field.name, pa.null()), field.type)
        if kind is None:
            return None
        fields[field.name] = kind
    return pa.struct(fields)


def _sound(kind: pa.DataType | None) -> pa.DataType | None:
    """A type that Parquet can have, and that is no object with data for keys; else None."""
    if kind is None:
        return None
    if types.is_list(kind):
        return None if _sound(kind.value_type) is None else kind
    if types.is_struct(kind):
        fields = list(kind)
        if not 0 < len(fields) <= FIELDS_MAX:
            return None
        return None if any(_sound(field.type) is None for field in fields) else kind
    return kind


def _without_null(kind: pa.DataType) -> pa.DataType:
    """A type in which what was always null is text: some readers know no type null."""
    if types.is_null(kind):
        return pa.string()
    if types.is_list(kind):
        return pa.list_(_without_null(kind.value_type))
    if types.is_struct(kind):
        return pa.struct({field.name: _without_null(field.type) for field in kind})
    return kind
