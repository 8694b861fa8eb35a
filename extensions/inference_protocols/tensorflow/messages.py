"""TensorFlow's messages as tensors and as documents of JSON, and back."""

from __future__ import annotations

import base64
from array import array
from typing import Any, Final

from extensions.inference_protocols.grpc.messages import PROTOS
from extensions.inference_protocols.tensorflow.requests import TYPES
from extensions.inference_protocols.tensors.datatypes import (
    BYTES,
    SIZES,
    Raw,
    elements,
    joined,
    raw_of,
    size_of,
    values_of,
)
from extensions.inference_protocols.tensors.envelope import Tensor
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


def tensor_of(name: str, message: Any, limit_bytes: int) -> Tensor:
    """Return a message as a tensor. Its last value fills what is left of its shape.

    Raises:
        InvalidRequest: it cannot be read.
        PayloadTooLarge: it has more bytes than the limit.
    """
    datatype, shape = _DATATYPES.get(message.dtype), [one.size for one in message.tensor_shape.dim]
    if datatype is None:
        known = _TYPE.values_by_number.get(message.dtype)
        kind = known.name if known is not None else message.dtype
        raise InvalidRequest(f"input '{name[:256]}' has the type {kind}, which no model here takes")
    size = size_of(name, datatype, shape)
    values = list(getattr(message, _FIELDS.get(datatype, "int_val")))
    if message.tensor_content:
        if datatype == BYTES:
            raise InvalidRequest(f"input '{name[:256]}' has tensor_content. Send it as string_val")
        return Tensor(name, datatype, shape, message.tensor_content)
    count = size // (SIZES[datatype] or 1)
    if len(values) > count:
        raise InvalidRequest(f"input '{name[:256]}' has {len(values)} values, its shape {count}")
    if missing := count - len(values):
        last: Any = values[-1] if values else b"" if datatype == BYTES else 0
        if missing * (len(last) + 4 if datatype == BYTES else SIZES[datatype]) > limit_bytes:
            raise PayloadTooLarge(
                f"input '{name[:256]}' has more than {limit_bytes} bytes once its last value fills "
                "its shape",
                hint="Send a smaller input, or raise body_limit_bytes (HEADRACE_BODY_LIMIT_BYTES).",
            )
        values += [bool(last) if datatype == "BOOL" else last] * missing
    return Tensor(name, datatype, shape, _raw(datatype, values))


def _raw(datatype: str, values: list[Any]) -> Raw:
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
