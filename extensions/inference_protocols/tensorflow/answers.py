"""Answers as TensorFlow has them: tensors in row or in column form, classes and regressions.

They are what becomes JSON; numbers have their text already. A function raises InvalidRequest for
outputs that cannot be shown in its form.
"""

from __future__ import annotations

import base64
import math
import struct
from array import array
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from extensions.inference_protocols.tensors.datatypes import BYTES, elements, values_of
from extensions.inference_protocols.tensors.envelope import Tensor
from headrace.errors import InvalidRequest

#: Bytes of an output whose name ends so are base64, as are those that are no text.
_BYTES_SUFFIX: Final = "_bytes"
#: The tokens for floats that JSON does not have.
_TOKENS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def predictions(tensors: Sequence[Tensor]) -> Any:
    """Return tensors in row form: a list of rows, which are objects if there are several."""
    rows = {tensor.shape[0] if tensor.shape else -1 for tensor in tensors}
    if len(rows) != 1 or -1 in rows:
        shapes = ", ".join(f"{tensor.name}: {tensor.shape}" for tensor in tensors)
        raise InvalidRequest(f"The outputs have inconsistent batch sizes ({shapes}). Use 'inputs'")
    columns = list(map(_nested, tensors))
    if len(tensors) == 1:
        return columns[0]
    names = [tensor.name for tensor in tensors]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def outputs(tensors: Sequence[Tensor]) -> Any:
    """Return tensors in column form: the only one, or an object of several."""
    columns = {tensor.name: _nested(tensor) for tensor in tensors}
    return columns if len(columns) != 1 else columns.popitem()[1]


def classes(tensors: Sequence[Tensor], labels: Sequence[str]) -> list[Any]:
    """Return each row's pairs of label and score, from `scores` or the only output."""
    scores = _output(tensors, "scores")
    size, values = math.prod(scores.shape[1:]), _values(scores)
    names = [labels[place] if place < len(labels) else str(place) for place in range(size)]
    starts = range(0, len(values), size or 1)
    return [list(zip(names, values[start : start + size], strict=True)) for start in starts]


def regressions(tensors: Sequence[Tensor]) -> list[Any]:
    """Return one value for each row, from `outputs` or the only output."""
    values = _output(tensors, "outputs")
    if math.prod(values.shape[1:]) != 1:
        raise InvalidRequest(f"The output {values.name} has not one value for each example")
    return _values(values)


def _output(tensors: Sequence[Tensor], name: str) -> Tensor:
    for tensor in tensors:
        if tensor.shape and (tensor.name == name or len(tensors) == 1):
            return tensor
    raise InvalidRequest(f"The model has not one output with rows, and no output `{name}`")


def _nested(tensor: Tensor) -> Any:
    """Return the values of a tensor as nested lists."""
    values, shape = _values(tensor), tensor.shape
    for level in range(len(shape) - 1, 0, -1):
        size, starts = shape[level], range(math.prod(shape[:level]))
        values = [values[start * size : (start + 1) * size] for start in starts]
    return values if shape else values[0]


def _values(tensor: Tensor) -> list[Any]:
    name, datatype, _, raw = tensor
    if datatype == BYTES:
        return [value_of(value, encoded=name.endswith(_BYTES_SUFFIX)) for value in elements(raw)]
    if datatype == "FP16":
        values = list(struct.unpack(f"<{len(raw) // 2}e", raw))
    else:
        values = values_of(datatype, raw)
    if datatype[0] != "F":
        return values
    texts = list(map(str, values))
    if datatype != "FP64":
        # Six digits, as TensorFlow writes a float, or as many as it needs.
        texts = [f"{value:.6g}" for value in values]
        if (short := array("f", map(float, texts)).tolist()) != values:
            pairs = zip(values, texts, short, strict=True)
            texts = [text if value == near else f"{value:.9g}" for value, text, near in pairs]
    # A whole number has a point too.
    texts = [text if set(text) & set(".en") else f"{text}.0" for text in texts]
    return [msgspec.Raw(_TOKENS.get(text, text).encode()) for text in texts]


def value_of(value: bytes, *, encoded: bool) -> Any:
    """Return bytes as a string, or as `{"b64": …}` if they are no text or `encoded`."""
    try:
        if not encoded:
            return value.decode()
    except UnicodeDecodeError:
        pass
    return {"b64": base64.b64encode(value).decode()}
