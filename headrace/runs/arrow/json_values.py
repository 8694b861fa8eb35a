"""Values of Arrow columns as JSON, and back into the type that they had.

| Arrow | JSON |
|---|---|
| integers, floats, booleans, text, null | the same; NaN and infinity become null |
| binary | `{"content_type", "base64"}`, as in results |
| timestamps, dates, times | text by ISO 8601 |
| decimals | text |
| durations | the whole number of the column's unit |
| lists, structs | lists, objects |
| maps | lists of `[key, value]` |
| dictionaries, extension types | what they stand for |
"""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyarrow import types

from headrace.jobs.media_types import BINARY_TYPE, image_type

_Walk: TypeAlias = Callable[[Any], Any] | None

_CLOCK: Final = re.compile(r"(.*?)(?:\.(\d{1,9}))?(Z|[+-]\d{2}:?\d{2})?")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SECOND: Final = datetime.timedelta(seconds=1)
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_ENCODER: Final = msgspec.json.Encoder()


def to_json(array: pa.Array) -> list[msgspec.Raw]:
    """Each value of a column as JSON text."""
    encode = _ENCODER.encode
    return [msgspec.Raw(encode(value)) for value in _said(array, _speaking(array.type))]


def to_values(array: pa.Array) -> list[Any]:
    """Each value of a column as what JSON can say; binary on its own stays bytes."""
    return _said(array, None if _is_binary(array.type) else _speaking(array.type))


def binary_json(body: bytes) -> dict[str, str]:
    """Bytes within JSON."""
    return {
        "content_type": image_type(body) or BINARY_TYPE,
        "base64": base64.b64encode(body).decode(),
    }


def from_values(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A column of a type from what `to_json` has made of one.

    Raises:
        ValueError, TypeError, LookupError: a value is not of that type.
    """
    walk = _hearing(kind)
    return pa.array(values if walk is None else [walk(value) for value in values], kind)


def _said(array: pa.Array, walk: _Walk) -> list[Any]:
    try:
        values = array.cast(_spoken(array.type, exact=False)).to_pylist()
    except (pa.ArrowInvalid, ValueError, OverflowError):
        # Nanoseconds that Python's own types cannot have, or years beyond 9999.
        values = array.cast(_spoken(array.type, exact=True)).to_pylist()
    return [value if walk is None else walk(value) for value in values]


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with those within it changed."""
    if types.is_struct(kind):
        return pa.struct([field.with_type(change(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_type), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(change(kind.value_type))
    if types.is_list(kind):
        return pa.list_(change(kind.value_type))
    return kind


def _spoken(kind: pa.DataType, *, exact: bool) -> pa.DataType:
    """The type of which Python's values are JSON for msgspec."""
    if isinstance(kind, pa.BaseExtensionType):
        return _spoken(kind.storage_type, exact=exact)
    if types.is_dictionary(kind):
        return _spoken(kind.value_type, exact=exact)
    if types.is_duration(kind):
        return pa.int64()
    if exact and types.is_temporal(kind):
        return pa.string()
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_time(kind) and kind.unit == "ns":
        return pa.time64("us")
    return _rebuilt(kind, lambda inner: _spoken(inner, exact=exact))


def _speaking(kind: pa.DataType) -> _Walk:
    """What is still to be done to a value of a type that JSON cannot say; None for nothing."""
    if isinstance(kind, pa.BaseExtensionType):
        return _speaking(kind.storage_type)
    if _is_binary(kind):
        return _known(binary_json)
    return _within(kind, _speaking, pairs=list)


def _hearing(kind: pa.DataType) -> _Walk:
    """What is to be done to JSON before Arrow can take it for a type; None for nothing."""
    if isinstance(kind, pa.BaseExtensionType):
        return _hearing(kind.storage_type)
    if _is_binary(kind):
        return _known(_bytes)
    if types.is_time(kind):
        return _known(lambda text: _time(text, _PER_SECOND[kind.unit]))
    if types.is_timestamp(kind):
        return _known(lambda text: _moment(text, _PER_SECOND[kind.unit]))
    if types.is_date(kind):
        return _known(datetime.date.fromisoformat)
    if types.is_decimal(kind):
        return _known(Decimal)
    if types.is_struct(kind):
        # Arrow would drop what it has no field for.
        inner = {field.name: _hearing(field.type) or _same for field in kind}
        return _known(lambda found: {name: inner[name](value) for name, value in found.items()})
    return _within(kind, _hearing, pairs=tuple)


def _within(
    kind: pa.DataType,
    of: Callable[[pa.DataType], _Walk],
    *,
    pairs: type[list[Any]] | type[tuple[Any, ...]],
) -> _Walk:
    if types.is_dictionary(kind):
        return of(kind.value_type)
    if types.is_map(kind):
        key, item = (of(inner) or _same for inner in (kind.key_type, kind.item_type))
        return _known(lambda found: [pairs((key(one[0]), item(one[1]))) for one in found])
    if types.is_struct(kind):
        walks = {field.name: walk for field in kind if (walk := of(field.type)) is not None}
        return _known(lambda found: _changed(found, walks)) if walks else None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        walk = of(kind.value_type)
        if walk is not None:
            return _known(lambda found: [walk(one) for one in found])
    return None


def _known(walk: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else walk(value)


def _same(value: Any) -> Any:
    return value


def _changed(found: dict[str, Any], walks: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    return {name: walks.get(name, _same)(value) for name, value in found.items()}


def _bytes(said: Any) -> bytes:
    try:
        return base64.b64decode(said["base64"], validate=True)
    except KeyError:
        raise ValueError("no bytes in base64") from None


def _time(text: str, per_second: int) -> int:
    """A time of day in parts of a second."""
    whole, fraction, _ = _split(text)
    since = datetime.datetime.fromisoformat(f"1970-01-01T{whole}+00:00") - _EPOCH
    return since // _SECOND * per_second + _parts(fraction, per_second)


def _moment(text: str, per_second: int) -> int:
    """A timestamp in parts of a second since 1970; one without a zone as if it were UTC."""
    whole, fraction, zone = _split(text)
    at = datetime.datetime.fromisoformat(whole + (zone or "+00:00"))
    return (at - _EPOCH) // _SECOND * per_second + _parts(fraction, per_second)


def _split(text: str) -> tuple[str, str, str]:
    """Whole seconds, the digits behind them, and the zone."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError("no time by ISO 8601")
    return found[1], found[2] or "", found[3] or ""


def _parts(fraction: str, per_second: int) -> int:
    return int(fraction.ljust(9, "0")) * per_second // 10**9
