"""The datatypes of v2: how long a value is, and values of JSON as raw bytes and back. No numpy.

What no tensor can be is an InvalidRequest.
"""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from headrace.errors import InvalidRequest

BYTES: Final = "BYTES"
#: The bytes of one value. Those of BYTES have a length of their own.
SIZES: Final = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2,
    "INT32": 4, "INT64": 8, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8, BYTES: 0,
}  # fmt: skip
#: The letters by which `array` and `memoryview` know them. FP16 and BF16 have no JSON form.
_CODES: Final = {
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h",
    "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d", "BOOL": "?",
}  # fmt: skip
#: What a value in JSON may be, by the first letter of its datatype, with rapidjson's word for it.
_JSON_TYPES: Final[Mapping[str, tuple[str, set[type]]]] = {
    "B": ("boolean", {bool}), "I": ("signed-integer", {int}), "U": ("unsigned-integer", {int}),
    "F": ("double", {int, float}),
}  # fmt: skip
_LENGTH: Final = struct.Struct("<I")
#: A tensor has at most so many values and bytes.
ELEMENTS_MAX: Final = 2**63 - 1
#: numpy has no more dimensions.
RANK_MAX: Final = 64
#: The most characters of a name or an id in an error.
SHOWN_CHARS: Final = 256
#: JSON that is nested more deeply is refused.
DEPTH_MAX: Final = 100

Raw = bytes | memoryview


def count_of(name: str, datatype: str, shape: Sequence[int]) -> int:
    """Return how many values a tensor has, if there can be one of this shape."""
    about = f"input '{name[:SHOWN_CHARS]}'"
    if len(shape) > RANK_MAX:
        raise InvalidRequest(f"{about} has {len(shape)} dimensions, more than {RANK_MAX}")
    if shape and min(shape) < 0:
        raise no_json("shape", "unsigned-integer")
    count = math.prod(shape)
    if count > ELEMENTS_MAX:
        raise InvalidRequest(
            f"{about} with shape {shown(shape)} causes total element count to exceed maximum size "
            f"of {ELEMENTS_MAX}"
        )
    if count * SIZES[datatype] > ELEMENTS_MAX:
        raise InvalidRequest(f"byte size overflow for {about}")
    return count


def shown(shape: Sequence[int]) -> str:
    """Return a shape as Triton's messages show it."""
    return f"[{','.join(map(str, shape))}]"


def flat(data: Any, count: int) -> list[Any]:
    """Return the `count` values of nested lists, which may also be flat already."""
    if type(data) is not list:
        raise no_json("data", "array")
    values, wrong_shape = data, "Shape does not match true shape of 'data' field"
    for _ in range(DEPTH_MAX):
        if not values or type(values[0]) is not list:
            break
        if set(map(type, values)) != {list}:
            raise InvalidRequest(f"Unable to parse 'data': {wrong_shape}")
        values = list(chain.from_iterable(values))
    else:
        raise too_deep()
    if len(values) != count:
        raise InvalidRequest(f"Unable to parse 'data': {wrong_shape}")
    return values


def dense(nested: Any) -> tuple[list[int], list[Any]]:
    """Return the shape of nested lists, and their values; errors have TensorFlow's texts."""
    shape: list[int] = []
    first = nested
    while type(first) is list:
        shape.append(len(first))
        first = first[0] if first else None
    values = [nested]
    for level, size in enumerate(shape):
        for value in values:
            length = len(value) if type(value) is list else "no list"
            if length != size:
                raise InvalidRequest(
                    f"Encountered list at unexpected size: {length} at level: {level} expected "
                    f"size: {size}"
                )
        values = list(chain.from_iterable(values))
    if list in set(map(type, values)):
        rank = len(shape)
        raise InvalidRequest(f"Encountered list at unexpected level: {rank} expected < {rank}")
    return shape, values


def too_deep() -> InvalidRequest:
    """Return the error for JSON that is nested too deeply."""
    return InvalidRequest(
        "failed to parse the request JSON buffer: JSON nesting depth exceeds maximum allowed limit "
        f"({DEPTH_MAX})"
    )


def raw_of(datatype: str, values: list[Any]) -> bytes:
    """Return JSON values, all of the datatype, as raw bytes."""
    if datatype == BYTES:
        if not set(map(type, values)) <= {str}:
            raise InvalidRequest(
                "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
            )
        return joined(map(str.encode, values))
    code, (word, types) = _code_of(datatype), _JSON_TYPES[datatype[0]]
    if not set(map(type, values)) <= types:
        raise no_json("data", word)
    try:
        return bytes(values) if datatype == "BOOL" else array(code, values).tobytes()
    except OverflowError:
        raise no_json("data", word) from None


def raw_of_message(about: str, datatype: str, values: list[Any]) -> bytes:
    """Return the values of a message of gRPC, which are of the kind of their field, as raw bytes.

    A field has values of several datatypes, so some do not fit the one that they are for.
    """
    try:
        return joined(values) if datatype == BYTES else raw_of(datatype, values)
    except InvalidRequest:
        raise InvalidRequest(f"{about} has a value that no {datatype} can be") from None


def _code_of(datatype: str) -> Any:
    if datatype in _CODES:
        return _CODES[datatype]
    raise InvalidRequest(
        f"sending {datatype} data via JSON is not supported. Please use the binary data format for "
        "input/output"
    )


def no_json(name: str, what: str) -> InvalidRequest:
    """Return the error for a member of JSON that has another type."""
    return InvalidRequest(f"Unable to parse '{name}': attempt to access JSON non-{what} as {what}")


def joined(elements: Iterable[bytes]) -> bytes:
    """Return the raw bytes of a tensor of BYTES."""
    return b"".join(part for value in elements for part in (_LENGTH.pack(len(value)), value))


def elements(raw: Raw) -> list[bytes]:
    """Return the values of a tensor of BYTES; raise ValueError if a length leads beyond the end."""
    data, values, at = bytes(raw), [], 0
    while at < len(data):
        left = len(data) - at - _LENGTH.size
        if left < 0:
            raise ValueError(
                f"expecting 4 bytes of a length but only {len(data) - at} bytes available"
            )
        (length,) = _LENGTH.unpack_from(data, at)
        if length > left:
            raise ValueError(f"expecting string of length {length} but only {left} bytes available")
        at += _LENGTH.size + length
        values.append(data[at - length : at])
    return values


def json_of(datatype: str, raw: Raw) -> msgspec.Raw:
    """Return raw bytes as a flat list in JSON, if it can express them."""
    if datatype == BYTES:
        try:
            return msgspec.Raw(msgspec.json.encode([value.decode() for value in elements(raw)]))
        except UnicodeDecodeError:
            raise InvalidRequest(
                "an output of BYTES is not UTF-8, so JSON cannot have it. Request it as binary data"
            ) from None
    values = values_of(datatype, raw)
    if datatype[0] == "F" and not all(map(math.isfinite, values)):
        # The tokens NaN and Infinity, which Python's JSON and tritonclient read.
        return msgspec.Raw(json.dumps(values).encode())
    return msgspec.Raw(msgspec.json.encode(values))


def values_of(datatype: str, raw: Raw) -> list[Any]:
    """Return raw numbers or booleans as a flat list."""
    values: list[Any] = memoryview(raw).cast("B").cast(_code_of(datatype)).tolist()
    return values
