"""Answers in TensorFlow's JSON: tensors in row or in column form, classes and regressions."""

from __future__ import annotations

import base64
import json
import math
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from api.http.messages import Header, Reply
from extensions.inference_protocols.jobs.over_http import error_reply as v2_reply
from extensions.inference_protocols.tensors.datatypes import BYTES, elements, values_of
from extensions.inference_protocols.tensors.envelope import Tensor
from headrace.errors import HeadraceError, InvalidRequest, JobExpired, Throttled

#: Bytes of an output whose name ends so are base64, as are those that are no text.
_BYTES_SUFFIX: Final = "_bytes"
#: JSON's words for Python's booleans, and the tokens for floats that JSON does not have.
_WORDS: Final = {
    "True": "true", "False": "false", "nan": "NaN", "inf": "Infinity", "-inf": "-Infinity",
}  # fmt: skip


def error_reply(error: HeadraceError, headers: tuple[Header, ...] = ()) -> Reply:
    """Return the answer for an error; a full queue is 429, and an expired job 504."""
    reply = v2_reply(error, headers)
    status = 429 if isinstance(error, Throttled) else 504
    return reply._replace(status=status) if isinstance(error, (Throttled, JobExpired)) else reply


def predictions(tensors: Sequence[Tensor]) -> str:
    """Return tensors in row form: a list of rows, which are objects if there are several.

    Raises:
        InvalidRequest: the model's outputs have no rows.
    """
    rows = {one.shape[0] if one.shape else -1 for one in tensors}
    if len(rows) != 1 or -1 in rows:
        shapes = ", ".join(f"{one.name}: {one.shape}" for one in tensors)
        raise InvalidRequest(f"The outputs have inconsistent batch sizes ({shapes}). Use 'inputs'")
    found = [_nested(one) for one in tensors]
    if len(tensors) == 1:
        return listed(found[0])
    return listed(_object(tensors, row) for row in zip(*found, strict=True))


def outputs(tensors: Sequence[Tensor]) -> str:
    """Return tensors in column form: the only one, or an object of several."""
    found = [listed(_nested(one)) if one.shape else _nested(one)[0] for one in tensors]
    return found[0] if len(found) == 1 else _object(tensors, found)


def classes(tensors: Sequence[Tensor], labels: Sequence[str]) -> str:
    """Return each row's pairs of label and score, from `scores` or the only output."""
    scores = _the(tensors, "scores")
    size, tokens = math.prod(scores.shape[1:]), _tokens(scores)
    names = [json.dumps(labels[at] if at < len(labels) else str(at)) for at in range(size)]
    pairs = [f"[{names[at % size]},{token}]" for at, token in enumerate(tokens)]
    return listed(listed(pairs[at : at + size]) for at in range(0, len(pairs), size or 1))


def regressions(tensors: Sequence[Tensor]) -> str:
    """Return one value for each row, from `outputs` or the only output."""
    values = _the(tensors, "outputs")
    if math.prod(values.shape[1:]) != 1:
        raise InvalidRequest(f"The output {values.name} has not one value for each example")
    return listed(_tokens(values))


def _the(tensors: Sequence[Tensor], name: str) -> Tensor:
    for one in tensors:
        if one.shape and (one.name == name or len(tensors) == 1):
            return one
    raise InvalidRequest(f"The model has not one output with rows, and no output `{name}`")


def _nested(tensor: Tensor) -> list[str]:
    """Return each value of the first dimension as JSON; that of a scalar alone."""
    tokens, shape = _tokens(tensor), tensor.shape
    for at in range(len(shape) - 1, 0, -1):
        size, starts = shape[at], range(math.prod(shape[:at]))
        tokens = [listed(tokens[start * size : (start + 1) * size]) for start in starts]
    return tokens


def _tokens(tensor: Tensor) -> list[str]:
    """Return each value of a tensor as JSON."""
    name, datatype, _, raw = tensor
    if datatype == BYTES:
        return [text_of(one, encoded=name.endswith(_BYTES_SUFFIX)) for one in elements(raw)]
    if datatype == "FP16":
        values = list(struct.unpack(f"<{len(raw) // 2}e", raw))
    else:
        values = values_of(datatype, raw)
    texts = list(map(str, values))
    if datatype in ("FP16", "FP32"):
        # Six digits, as TensorFlow writes a float, or as many as it needs.
        texts = [f"{one:.6g}" for one in values]
        if (short := array("f", map(float, texts)).tolist()) != values:
            pairs = zip(values, texts, short, strict=True)
            texts = [text if one == near else f"{one:.9g}" for one, text, near in pairs]
    if datatype[0] == "F":
        # A whole number has a point too.
        texts = [one if set(one) & set(".en") else f"{one}.0" for one in texts]
    return [_WORDS.get(one, one) for one in texts] if datatype[0] in "FB" else texts


def text_of(value: bytes, *, encoded: bool) -> str:
    """Return bytes as JSON: a string, or `{"b64": …}` if they are no text or `encoded`."""
    try:
        if not encoded:
            return json.dumps(value.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        pass
    return json.dumps({"b64": base64.b64encode(value).decode()})


def listed(texts: Iterable[str]) -> str:
    """Return values in JSON as a list."""
    return f"[{','.join(texts)}]"


def _object(tensors: Sequence[Tensor], texts: Iterable[str]) -> str:
    pairs = zip(tensors, texts, strict=True)
    return "{" + ",".join(f"{json.dumps(one.name)}:{text}" for one, text in pairs) + "}"
