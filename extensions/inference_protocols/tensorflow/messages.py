"""TensorFlow's messages as tensors and as documents of JSON, and back."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping
from typing import Any, Final

from extensions.inference_protocols.grpc.messages import PROTOS
from extensions.inference_protocols.tensorflow.requests import TYPES
from extensions.inference_protocols.tensors.datatypes import (
    BYTES,
    SHOWN_CHARS,
    SIZES,
    Raw,
    elements,
    joined,
    raw_of,
    size_of,
    values_of,
)
from extensions.inference_protocols.tensors.envelope import Tensor
from extensions.inference_protocols.tensors.requests import BYTES_VALUES_MAX
from headrace.errors import InvalidRequest, PayloadTooLarge

TensorProto: Final = PROTOS.message("tensorflow.TensorProto")
_TYPE: Final = PROTOS.pool.FindEnumTypeByName("tensorflow.DataType")
_NUMBERS: Final = {
    name: _TYPE.values_by_name[f"DT_{TYPES.get(name, name).upper()}"].number for name in SIZES
}
_DATATYPES: Final = {number: name for name, number in _NUMBERS.items()}
#: Where a message has values of a datatype that is not in `int_val`.
_FIELDS: Final = {
    "FP16": "half_val", "BF16": "half_val", "FP32": "float_val", "FP64": "double_val",
    "INT64": "int64_val", "UINT32": "uint32_val", "UINT64": "uint64_val", "BOOL": "bool_val",
    BYTES: "string_val",
}  # fmt: skip
#: `half_val` has the bits of its values.
_HALVES: Final = ("FP16", "BF16")


def tensors_of(messages: Mapping[str, Any], limit_bytes: int) -> list[Tensor]:
    """Return messages as tensors, which together have at most `limit_bytes`.

    A message of a few bytes can have a shape of any size, as its last value fills what is left.

    Raises:
        InvalidRequest: one cannot be read.
        PayloadTooLarge: they have more bytes than the limit.
    """
    tensors: list[Tensor] = []
    for name, message in messages.items():
        tensors.append(_tensor(name, message, limit_bytes))
        limit_bytes -= len(tensors[-1].data)
    return tensors


def _tensor(name: str, message: Any, limit_bytes: int) -> Tensor:
    shown = name[:SHOWN_CHARS]
    datatype, shape = _DATATYPES.get(message.dtype), [one.size for one in message.tensor_shape.dim]
    if datatype is None:
        known = _TYPE.values_by_number.get(message.dtype)
        kind = known.name if known is not None else message.dtype
        raise InvalidRequest(f"input '{shown}' has the type {kind}, which no model here takes")
    size = size_of(name, datatype, shape)
    if message.tensor_content:
        if datatype == BYTES:
            raise InvalidRequest(f"input '{shown}' has tensor_content. Send it as string_val")
        return Tensor(name, datatype, shape, message.tensor_content)
    values, count = (
        getattr(message, _FIELDS.get(datatype, "int_val")),
        size // _least_bytes(datatype),
    )
    if len(values) > count:
        raise InvalidRequest(f"input '{shown}' has {len(values)} values, its shape {count}")
    if datatype == BYTES and count > BYTES_VALUES_MAX:
        raise InvalidRequest(
            f"input '{shown}' has {count} values, and a tensor of BYTES at most {BYTES_VALUES_MAX}"
        )
    # Refused before anything of its size is made.
    if count * _least_bytes(datatype) > limit_bytes:
        raise _too_large(shown)
    sent, missing = _raw_values(datatype, list(values)), count - len(values)
    if not missing:
        return Tensor(name, datatype, shape, sent)
    # Without a value it is zero, or the length of no bytes.
    filler = _raw_values(datatype, [values[-1]]) if values else bytes(SIZES[datatype] or 4)
    if len(sent) + missing * len(filler) > limit_bytes:
        raise _too_large(shown)
    return Tensor(name, datatype, shape, bytes(sent) + bytes(filler) * missing)


def _least_bytes(datatype: str) -> int:
    """Return the least bytes of a value."""
    return SIZES[datatype] or 1


def _too_large(name: str) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"input '{name}' makes the tensors of the request larger than body_limit_bytes",
        hint="Send a smaller shape, or raise body_limit_bytes (HEADRACE_BODY_LIMIT_BYTES).",
    )


def _raw_values(datatype: str, values: list[Any]) -> Raw:
    if datatype == BYTES:
        return joined(values)
    if datatype not in _HALVES:
        return raw_of(datatype, values)
    try:
        return array("H", values).tobytes()
    except OverflowError:
        raise InvalidRequest("half_val has a value of more than 16 bits") from None


def message_of(tensor: Tensor) -> Any:
    """Return a tensor as a message, with its values in the field of their type."""
    _, datatype, shape, raw = tensor
    message = TensorProto(dtype=_NUMBERS[datatype])
    for size in shape:
        message.tensor_shape.dim.add(size=size)
    if datatype == BYTES:
        values: list[Any] = elements(raw)
    elif datatype in _HALVES:
        values = values_of("UINT16", raw)
    else:
        values = values_of(datatype, raw)
    getattr(message, _FIELDS.get(datatype, "int_val")).extend(values)
    return message


def document_of_examples(message: Any) -> dict[str, Any]:
    """Return the input of a request to classify or regress as its document in REST."""
    kind = message.WhichOneof("kind")
    if kind is None:
        return {}
    given = getattr(message, kind)
    document: dict[str, Any] = {"examples": [_features(one) for one in given.examples]}
    if kind == "example_list_with_context":
        document["context"] = _features(given.context)
    return document


def _features(example: Any) -> dict[str, list[Any]]:
    found = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        if kind == "bytes_list":
            values = [{"b64": base64.b64encode(one).decode()} for one in values]
        found[name] = values
    return found
