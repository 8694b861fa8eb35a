"""Bodies of requests: JSON in row or in column form as tensors. Errors have TensorFlow's texts."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from extensions.inference_protocols.tensors.datatypes import BYTES, Raw, dense, joined, raw_of
from extensions.inference_protocols.tensors.declarations import Declaration
from extensions.inference_protocols.tensors.envelope import Tensor
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
    """Return the JSON object of a body; NaN and Infinity are numbers.

    Raises:
        InvalidRequest: the body has no object, or one for an unknown signature.
        RecursionError: it is nested too deeply, as in all other functions here.
    """
    try:
        found = _loaded(body)
    except ValueError as error:
        raise InvalidRequest(f"JSON Parse error: {error}") from None
    if type(found) is not dict:
        raise _of_value(found, "Is not object")
    signature = found.get("signature_name", "")
    if type(signature) is not str:
        raise _of_value(
            found, "not formatted correctly. 'signature_name' key must be a string value."
        )
    check_signature(signature)
    return found


class _Texts(msgspec.Struct):
    """A request to predict whose values stay JSON text."""

    instances: list[msgspec.Raw] = []
    inputs: msgspec.Raw = msgspec.Raw()
    signature_name: str = ""


_TEXTS: Final = msgspec.json.Decoder(_Texts).decode
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def texts_of(body: bytes) -> list[msgspec.Raw] | msgspec.Raw:
    """Return the values of a request for a model without tensors, as the client wrote them.

    They are a list in row form, and one text in column form. No value becomes an object of Python:
    30 MB of them would take a second, in which no other thread runs.

    Raises:
        InvalidRequest: as `document_of` and `instances_of`, and for NaN and Infinity.
    """
    try:
        if not body.isascii():
            body.decode()  # the text of a Raw may be no UTF-8
        found = _TEXTS(body)
        check_signature(found.signature_name)
        if bool(found.instances) != bool(memoryview(found.inputs).nbytes):
            return found.instances or found.inputs
    except msgspec.ValidationError:
        pass
    except ValueError as error:
        raise InvalidRequest(f"JSON Parse error: {why_not_json(error, body)}") from None
    instances_of(document_of(body))
    raise InvalidRequest("Missing 'inputs' or 'instances' key")


def bytes_of_text(text: msgspec.Raw) -> bytes | None:
    """Return the bytes of a text that is `{"b64": …}`, as `bytes_of`.

    Raises:
        InvalidRequest: it is an object whose text is not UTF-8.
    """
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
        raise InvalidRequest(f'Serving signature name: "{name[:64]}" not found in signature def')


def _loaded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except ValueError:
        # Python's own parser also reads NaN and Infinity.
        return json.loads(body)


def instances_of(document: Mapping[str, Any]) -> list[Any] | None:
    """Return the rows of a request to predict; None if it is in column form.

    Raises:
        InvalidRequest: it has neither rows nor columns, or both.
    """
    if "instances" in document and "inputs" in document:
        keys = "expecting only one of 'inputs' or 'instances' keys to exist"
        raise _of_value(document, f"Not formatted correctly {keys}")
    if "inputs" in document:
        return None
    if "instances" not in document:
        raise InvalidRequest("Missing 'inputs' or 'instances' key")
    found = document["instances"]
    if type(found) is not list:
        raise _of_value(document, "Excepting 'instances' to be an list/array")
    if not found:
        raise _of_value(document, "No values in 'instances' array")
    return found


def tensors_of_rows(rows: Sequence[Any], declared: Declaration) -> list[Tensor]:
    """Return the rows of a request as tensors; each is a value, or an object of values by name.

    Raises:
        InvalidRequest: they do not fit the model, or one another.
    """
    named = _is_named(rows[0])
    plain = "instances is a plain list, but expecting list of objects"
    names = rows[0].keys() if named else {_only(declared, plain)}
    needed = {one.name for one in declared.inputs if not one.optional or one.name in names}
    for at, row in enumerate(rows):
        if _is_named(row) != named:
            kinds = "object but got list" if named else "value/list but got object"
            raise InvalidRequest(f"Expecting {kinds} at item {at} of input list")
        if named and row.keys() != needed:
            raise InvalidRequest(
                f"Failed to process element: {at} of 'instances' list. JSON object: {_text(row)} "
                f"keys must be equal to: {','.join(sorted(needed))}"
            )
    columns = {name: [row[name] for row in rows] if named else rows for name in names}
    return tensors_of_columns(columns, declared)


def tensors_of_columns(inputs: Any, declared: Declaration) -> list[Tensor]:
    """Return whole inputs as tensors: the only one, or an object of them by name.

    Raises:
        InvalidRequest: they do not fit the model.
    """
    if not _is_named(inputs):
        inputs = {_only(declared, "inputs is a plain value/list, but expecting an object"): inputs}
    found = []
    for tensor in declared.inputs:
        if tensor.name in inputs:
            shape, values = dense(inputs[tensor.name])
            raw = _raw(tensor.datatype, values)
            found.append(Tensor(tensor.name, tensor.datatype, shape, raw))
        elif not tensor.optional:
            raise InvalidRequest(f"Missing named input: {tensor.name} in 'inputs' object.")
    return found


def tensors_of_examples(document: Mapping[str, Any], declared: Declaration) -> list[Tensor]:
    """Return the examples of a request to classify or regress as tensors.

    A feature of an example is a value or a list; those that the model does not take are ignored.

    Raises:
        InvalidRequest: they do not fit the model.
    """
    examples, context = document.get("examples"), document.get("context", {})
    if type(examples) is not list or not examples:
        raise _of_value(document, "Expecting 'examples' value to be an list/array with values")
    rows = []
    for one in (context, *examples):
        if type(one) is not dict:
            raise InvalidRequest(f"Example must be JSON object but got JSON {_type(one)}")
        features = {**context, **one}
        rows.append(
            {
                tensor.name: _feature(features[tensor.name], len(declared.dims_of(tensor)))
                for tensor in declared.inputs
                if tensor.name in features
            }
        )
    return tensors_of_rows(rows[1:], declared)


def _feature(value: Any, rank: int) -> Any:
    """Return a feature, in which a value and a list of one value are the same, as a row."""
    if rank == 0 and type(value) is list and len(value) == 1:
        return value[0]
    return [value] if rank == 1 and type(value) is not list else value


def bytes_of(value: Any) -> bytes | None:
    """Return the bytes of `{"b64": …}`; None for any other value.

    Raises:
        InvalidRequest: it is not base64.
    """
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
    needed = [one.name for one in declared.inputs if not one.optional]
    if len(needed) != 1:
        raise InvalidRequest(f"{what} as multiple input tensors required as per tensorinfo_map")
    return needed[0]


def _raw(datatype: str, values: list[Any]) -> Raw:
    of_bytes = datatype == BYTES
    wrong = (AttributeError, UnicodeEncodeError) if of_bytes else (InvalidRequest,)
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
    raise _of_value(values[0], f"Type: {_type(values[0])} is not of expected type: {kind}")


def _element(value: Any) -> bytes:
    found = bytes_of(value)
    encoded: bytes = value.encode() if found is None else found
    return encoded


def _of_value(value: Any, what: str) -> InvalidRequest:
    return InvalidRequest(f"JSON Value: {_text(value)} {what}")


def _type(value: Any) -> str:
    return _JSON_TYPES.get(type(value)) or ("Null" if value is None else str(value))


def _text(value: Any) -> str:
    # In parts, as a whole body takes long to write.
    found, parts = "", json.JSONEncoder().iterencode(value)
    while len(found) <= _SHOWN_MAX_CHARS and (part := next(parts, "")):
        found += part
    return found if len(found) <= _SHOWN_MAX_CHARS else f"{found[:_SHOWN_MAX_CHARS]}…"
