"""Bodies of requests: JSON in row or in column form as tensors. Errors have TensorFlow's texts.

Each function raises InvalidRequest for what does not fit the model or the protocol, and
RecursionError for what is nested too deeply.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from extensions.inference_protocols.tensors.datatypes import BYTES, Raw, dense, joined, raw_of
from extensions.inference_protocols.tensors.envelope import Tensor
from extensions.inference_protocols.tensors.requests import Declaration
from headrace.errors import InvalidRequest
from headrace.jobs.values.encoding import why_not_json

#: The only signature of a model.
SIGNATURE: Final = "serving_default"
#: TensorFlow's names of datatypes, where they differ from v2's in more than their case.
TYPES: Final = {
    "FP16": "half", "BF16": "bfloat16", "FP32": "float", "FP64": "double", BYTES: "string",
}  # fmt: skip
_JSON_TYPES: Final = {dict: "Object", list: "Array", str: "String", int: "Number", float: "Number"}
_SHOWN_MAX_CHARS: Final = 256


def document_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; NaN and Infinity are numbers."""
    try:
        document = msgspec.json.decode(body)
    except ValueError:
        try:
            document = json.loads(body)  # it also reads NaN and Infinity
        except ValueError as error:
            raise InvalidRequest(f"JSON Parse error: {error}") from None
    if type(document) is not dict:
        raise _mistake(document, "Is not object")
    signature = document.get("signature_name", "")
    if type(signature) is not str:
        wrong = "not formatted correctly. 'signature_name' key must be a string value."
        raise _mistake(document, wrong)
    check_signature(signature)
    return document


class _Texts(msgspec.Struct):
    """A request to predict whose values stay JSON text."""

    instances: list[msgspec.Raw] = []
    inputs: msgspec.Raw = msgspec.Raw()
    signature_name: str = ""


_TEXTS: Final = msgspec.json.Decoder(_Texts).decode
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def texts_of(body: bytes) -> list[msgspec.Raw] | msgspec.Raw:
    """Return the values of a request for a model without tensors, as the client wrote them.

    They are a list in row form, and one text in column form. None can be NaN or Infinity: no value
    becomes an object of Python, as 30 MB of them take a second, in which no other thread runs.
    """
    try:
        if not body.isascii():
            body.decode()  # the text of a Raw may be no UTF-8
        texts = _TEXTS(body)
        check_signature(texts.signature_name)
        if bool(texts.instances) != bool(memoryview(texts.inputs).nbytes):
            return texts.instances or texts.inputs
    except msgspec.ValidationError:
        pass
    except ValueError as error:
        raise InvalidRequest(f"JSON Parse error: {why_not_json(error, body)}") from None
    instances_of(document_of(body))
    raise InvalidRequest("Missing 'inputs' or 'instances' key")


def bytes_of_text(text: msgspec.Raw) -> bytes | None:
    """Return the bytes of a text that is `{"b64": …}`, as `bytes_of`."""
    if bytes(memoryview(text)[:1]) != b"{":
        return None
    try:
        named = _MEMBERS(text).keys() == {"b64"}
        return bytes_of(msgspec.json.decode(text)) if named else None
    except ValueError as error:  # until now no text was decoded
        raise InvalidRequest(f"JSON Parse error: {why_not_json(error, text)}") from None


def check_signature(name: str) -> None:
    """Raise InvalidRequest for a signature that no model has."""
    if name not in ("", SIGNATURE):
        raise InvalidRequest(f"Serving signature name: {_text(name)} not found in signature def")


def instances_of(document: Mapping[str, Any]) -> list[Any] | None:
    """Return the rows of a request to predict; None if it is in column form."""
    if "instances" in document and "inputs" in document:
        keys = "expecting only one of 'inputs' or 'instances' keys to exist"
        raise _mistake(document, f"Not formatted correctly {keys}")
    if "inputs" in document:
        return None
    if "instances" not in document:
        raise InvalidRequest("Missing 'inputs' or 'instances' key")
    rows = document["instances"]
    if type(rows) is not list:
        raise _mistake(document, "Excepting 'instances' to be an list/array")
    if not rows:
        raise _mistake(document, "No values in 'instances' array")
    return rows


def tensors_of_rows(rows: Sequence[Any], declared: Declaration) -> list[Tensor]:
    """Return the rows of a request as tensors; each is a value, or an object of values by name."""
    named = _is_named(rows[0])
    plain = "instances is a plain list, but expecting list of objects"
    names = rows[0].keys() if named else {_only(declared, plain)}
    needed = {
        tensor.name for tensor in declared.inputs if not tensor.optional or tensor.name in names
    }
    for place, row in enumerate(rows):
        if _is_named(row) != named:
            kinds = "object but got list" if named else "value/list but got object"
            raise InvalidRequest(f"Expecting {kinds} at item {place} of input list")
        if named and row.keys() != needed:
            raise InvalidRequest(
                f"Failed to process element: {place} of 'instances' list. JSON object: "
                f"{_text(row)} keys must be equal to: {','.join(sorted(needed))}"
            )
    columns = {name: [row[name] for row in rows] if named else rows for name in names}
    return tensors_of_columns(columns, declared)


def tensors_of_columns(inputs: Any, declared: Declaration) -> list[Tensor]:
    """Return whole inputs as tensors: the only one, or an object of them by name."""
    if not _is_named(inputs):
        inputs = {_only(declared, "inputs is a plain value/list, but expecting an object"): inputs}
    tensors = []
    for tensor in declared.inputs:
        name, datatype = tensor.name, tensor.datatype
        if name in inputs:
            shape, values = dense(inputs[name])
            tensors.append(Tensor(name, datatype, shape, _raw(datatype, values)))
        elif not tensor.optional:
            raise InvalidRequest(f"Missing named input: {name} in 'inputs' object.")
    return tensors


def tensors_of_examples(document: Mapping[str, Any], declared: Declaration) -> list[Tensor]:
    """Return the examples of a request to classify or regress as tensors.

    A feature of an example is a value or a list; those that the model does not take are ignored.
    """
    examples, context = document.get("examples"), document.get("context", {})
    if type(examples) is not list or not examples:
        raise _mistake(document, "Expecting 'examples' value to be an list/array with values")
    for example in (context, *examples):
        if type(example) is not dict:
            raise InvalidRequest(f"Example must be JSON object but got JSON {_type(example)}")
    ranks = {tensor.name: len(declared.dims_of(tensor)) for tensor in declared.inputs}
    rows = [
        {n: _feature(value, ranks[n]) for n, value in {**context, **own}.items() if n in ranks}
        for own in examples
    ]
    return tensors_of_rows(rows, declared)


def _feature(value: Any, rank: int) -> Any:
    """Return a feature, in which a value and a list of one value are the same, as a row."""
    if rank == 0 and type(value) is list and len(value) == 1:
        return value[0]
    return [value] if rank == 1 and type(value) is not list else value


def bytes_of(value: Any) -> bytes | None:
    """Return the bytes of `{"b64": …}`; None for any other value."""
    text = value.get("b64") if type(value) is dict and len(value) == 1 else None
    if type(text) is not str:
        return None
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise InvalidRequest("Unable to base64 decode") from None


def _is_named(value: Any) -> bool:
    return type(value) is dict and bytes_of(value) is None


def _only(declared: Declaration, what: str) -> str:
    """Return the input that a value without a name is for."""
    needed = [tensor.name for tensor in declared.inputs if not tensor.optional]
    if len(needed) != 1:
        raise InvalidRequest(f"{what} as multiple input tensors required as per tensorinfo_map")
    return needed[0]


def _raw(datatype: str, values: list[Any]) -> Raw:
    of_bytes = datatype == BYTES
    wrong = (TypeError, UnicodeEncodeError) if of_bytes else (InvalidRequest,)
    try:
        return joined(map(_element, values)) if of_bytes else raw_of(datatype, values)
    except wrong:
        if not values:
            return b""
        if len(values) > 1:
            # The message names the first value that is wrong.
            half = len(values) // 2
            return b"".join((_raw(datatype, values[:half]), _raw(datatype, values[half:])))
    kind = TYPES.get(datatype, datatype.lower())
    raise _mistake(values[0], f"Type: {_type(values[0])} is not of expected type: {kind}")


def _element(value: Any) -> bytes:
    decoded = bytes_of(value)
    return str.encode(value) if decoded is None else decoded


def _mistake(value: Any, what: str) -> InvalidRequest:
    return InvalidRequest(f"JSON Value: {_text(value)} {what}")


def _type(value: Any) -> str:
    return _JSON_TYPES.get(type(value)) or ("Null" if value is None else str(value))


def _text(value: Any) -> str:
    # In parts, as a whole body takes long to write.
    text, parts = "", json.JSONEncoder().iterencode(value)
    while len(text) <= _SHOWN_MAX_CHARS and (part := next(parts, "")):
        text += part
    return text if len(text) <= _SHOWN_MAX_CHARS else f"{text[:_SHOWN_MAX_CHARS]}…"
