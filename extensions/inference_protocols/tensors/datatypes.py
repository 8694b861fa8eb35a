"""The datatypes of v2: how long a value is, and values of JSON as raw bytes and back. No numpy."""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from headrace.errors import InvalidRequest

BYTES: Final = "BYTES"
BOOL: Final = "BOOL"
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
#: Rapidjson's words for what a value should have been, which Triton's messages have.
_WORDS: Final = {"I": "signed-integer", "U": "unsigned-integer", "F": "double"}
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


def size_of(name: str, datatype: str, shape: Sequence[int]) -> int:
    """Return how many bytes a tensor has; for BYTES, how many values.

    Raises:
        InvalidRequest: a dimension is negative, or it has too many of them, or is too large.
    """
    if len(shape) > RANK_MAX:
        raise InvalidRequest(
            f"input '{name[:SHOWN_CHARS]}' has {len(shape)} dimensions, more than {RANK_MAX}"
        )
    if shape and min(shape) < 0:
        raise no_json("shape", "unsigned-integer")
    count = math.prod(shape)
    if count > ELEMENTS_MAX:
        raise InvalidRequest(
            f"input '{name}' with shape {shown(shape)} causes total element count to exceed "
            f"maximum size of {ELEMENTS_MAX}"
        )
    total = count * (SIZES[datatype] or 1)
    if total > ELEMENTS_MAX:
        raise InvalidRequest(f"byte size overflow for input '{name}'")
    return total


def shown(shape: Sequence[int]) -> str:
    """Return a shape as Triton's messages show it."""
    return f"[{','.join(map(str, shape))}]"


def flat(data: Any) -> list[Any]:
    """Return the values of nested lists, which may also be flat already.

    Raises:
        InvalidRequest: it is no list, lists and values are mixed, or they are nested too deeply.
    """
    if type(data) is not list:
        raise no_json("data", "array")
    values = data
    for _ in range(DEPTH_MAX):
        if not values or type(values[0]) is not list:
            break
        if set(map(type, values)) != {list}:
            raise InvalidRequest(
                "Unable to parse 'data': Shape does not match true shape of 'data' field"
            )
        values = list(chain.from_iterable(values))
    else:
        raise InvalidRequest(_TOO_DEEP)
    return values


def dense(value: Any) -> tuple[list[int], list[Any]]:
    """Return the shape of nested lists, and their values; errors have TensorFlow's texts.

    Raises:
        InvalidRequest: lists of a level have several lengths, or are mixed with values.
    """
    shape: list[int] = []
    first = value
    while type(first) is list:
        shape.append(len(first))
        first = first[0] if first else None
    values = [value]
    for level, size in enumerate(shape):
        for one in values:
            found = len(one) if type(one) is list else "no list"
            if found != size:
                raise InvalidRequest(
                    f"Encountered list at unexpected size: {found} at level: {level} expected "
                    f"size: {size}"
                )
        values = list(chain.from_iterable(values))
    if list in set(map(type, values)):
        rank = len(shape)
        raise InvalidRequest(f"Encountered list at unexpected level: {rank} expected < {rank}")
    return shape, values


_TOO_DEEP: Final = (
    f"failed to parse the request JSON buffer: JSON nesting depth exceeds maximum allowed limit "
    f"({DEPTH_MAX})"
)


def too_deep() -> InvalidRequest:
    """Return the error for JSON that is nested too deeply."""
    return InvalidRequest(_TOO_DEEP)


def raw_of(datatype: str, values: list[Any]) -> bytes:
    """Return JSON values as raw bytes.

    Raises:
        InvalidRequest: a value is not of the datatype.
    """
    if datatype == BYTES:
        return joined(map(_element, values))
    kinds = set(map(type, values))
    if datatype == BOOL:
        if not kinds <= {bool}:
            raise no_json("data", "boolean")
        return bytes(values)
    if datatype not in _CODES:
        raise InvalidRequest(
            f"sending {datatype} data via JSON is not supported. Please use the binary data format "
            "for input/output"
        )
    if not kinds <= ({int, float} if datatype[0] == "F" else {int}):
        raise no_json("data", _WORDS[datatype[0]])
    try:
        return array(_CODES[datatype], values).tobytes()
    except OverflowError:
        raise no_json("data", _WORDS[datatype[0]]) from None


def no_json(name: str, what: str) -> InvalidRequest:
    """Return the error for a member of JSON that has another type."""
    return InvalidRequest(f"Unable to parse '{name}': attempt to access JSON non-{what} as {what}")


def _element(value: Any) -> bytes:
    if type(value) is not str:
        raise InvalidRequest(
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
        )
    return value.encode()


def joined(elements: Any) -> bytes:
    """Return the raw bytes of a tensor of BYTES."""
    return b"".join(part for one in elements for part in (_LENGTH.pack(len(one)), one))


def elements(raw: Raw) -> list[bytes]:
    """Return the values of a tensor of BYTES.

    Raises:
        ValueError: a length leads beyond the end.
    """
    data, found, at = bytes(raw), [], 0
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
        found.append(data[at - length : at])
    return found


def json_of(datatype: str, raw: Raw) -> msgspec.Raw:
    """Return raw bytes as a flat list in JSON.

    Raises:
        InvalidRequest: JSON cannot express them.
    """
    if datatype == BYTES:
        try:
            return msgspec.Raw(msgspec.json.encode([one.decode() for one in elements(raw)]))
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
    """Return raw numbers or booleans as a flat list; errors as for `json_of`."""
    if datatype not in _CODES:
        raise InvalidRequest(
            f"sending {datatype} data via JSON is not supported. Please use the binary data format "
            "for input/output"
        )
    view: Any = memoryview(raw)
    found: list[Any] = view.cast("B").cast(_CODES[datatype]).tolist()
    return found
