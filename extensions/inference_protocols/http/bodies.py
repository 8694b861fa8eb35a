"""The bodies of v2 over HTTP: JSON with tensors in it, raw or as lists, in any mix.

What cannot be read or written is an InvalidRequest.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from extensions.inference_protocols.tensors.datatypes import (
    BYTES,
    SIZES,
    count_of,
    flat,
    joined,
    no_json,
    raw_of,
    shown,
    too_deep,
)
from extensions.inference_protocols.tensors.envelope import DATA_SIZE, Tensor, write_body
from extensions.inference_protocols.tensors.requests import (
    SHARED,
    Declaration,
    InferRequest,
    Value,
    no_shared_memory,
    wanted_output,
)
from headrace.config.inputs.tensors import ANY_SIZE
from headrace.errors import InvalidRequest

LENGTH: Final = b"inference-header-content-length"
_BINARY_ALL: Final = "binary_data_output"
#: msgspec's texts for a member that is missing, or of a wrong type, with rapidjson's words.
_MISSING: Final = re.compile(r"missing required field `(\w+)`")
_WRONG: Final = re.compile(r"^Expected `(\w+)`.* - at `\$\.(?:.*\.)?(\w+)(?:\[\.\.\.\]|\[\d+\])?`$")
_WORDS: Final = {
    "str": "string", "int": "unsigned-integer", "array": "array", "object": "object",
}  # fmt: skip


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Value] = {}


class _Input(_Output, kw_only=True):
    shape: list[int]
    datatype: str
    data: Any = msgspec.UNSET


class _Request(msgspec.Struct):
    inputs: list[_Input]
    outputs: list[_Output] = []
    id: str = ""
    parameters: dict[str, Value] = {}


_DECODE: Final = msgspec.json.Decoder(_Request).decode


def read_request(body: bytes, header: bytes, declared: Declaration) -> InferRequest:
    """Read the body of a request; `header` is the length of its JSON, b"" if it is all of it."""
    if not header:
        return _read(body, body, b"", declared)
    if not header.isdigit() or len(header) > 18 or int(header) > len(body):
        raise InvalidRequest(
            f"inference header size should be in range (0, {len(body)}), got: "
            f"{header[:32].decode('latin-1')}"
        )
    length = int(header)
    if not length:
        return _raw_request(body, declared)
    return _read(body, body[:length], memoryview(body)[length:], declared)


def _decoded(text: bytes) -> _Request:
    reason = ""
    for read in (_DECODE, _with_nan):
        try:
            return read(text)
        except msgspec.ValidationError as error:
            raise _mistake(error) from None
        except RecursionError:
            raise too_deep() from None
        except (ValueError, TypeError) as error:
            reason = reason or str(error)
    raise InvalidRequest(f"failed to parse the request JSON buffer: {reason}")


def _with_nan(text: bytes) -> _Request:
    """Read the NaN and Infinity that some clients write, with Python's own parser."""
    if b"\\u" in text:
        raise ValueError("it would read half of a surrogate pair too, which no answer can have")
    return msgspec.convert(json.loads(text), _Request)


def _mistake(error: msgspec.ValidationError) -> InvalidRequest:
    """Return the error for a member of a wrong type, in the words of Triton's parser."""
    text = str(error)
    if missing := _MISSING.search(text):
        return InvalidRequest(
            f"Unable to parse '{missing[1]}': attempt to access non-existing object member "
            f"'{missing[1]}'"
        )
    wrong = _WRONG.search(text)
    if wrong is None or wrong[1] not in _WORDS:
        return InvalidRequest(f"failed to parse the request JSON buffer: {text}")
    return no_json(wrong[2], _WORDS[wrong[1]])


def _read(
    body: bytes, text: bytes, rest: bytes | memoryview, declared: Declaration
) -> InferRequest:
    given = _decoded(text)
    tensors, as_it_came = [], bool(rest)
    for sent in given.inputs:
        size = sent.parameters.get(DATA_SIZE)
        if SHARED in sent.parameters:
            raise no_shared_memory()
        if size is None:
            as_it_came = False
            tensors.append(Tensor(sent.name, sent.datatype, sent.shape, _values(sent)))
            continue
        if type(size) is not int or size < 0:
            raise no_json(DATA_SIZE, "unsigned-integer")
        if sent.data is not msgspec.UNSET:
            raise InvalidRequest(
                f"unexpected 'data' in input '{sent.name}', whose binary data follows the JSON"
            )
        if size > len(rest):
            raise InvalidRequest(
                f"unexpected size for input '{sent.name}', expecting {size - len(rest)} additional "
                f"bytes for model '{declared.model}'"
            )
        tensors.append(Tensor(sent.name, sent.datatype, sent.shape, rest[:size]))
        rest = rest[size:]
    if rest:
        raise InvalidRequest(f"unexpected additional input data for model '{declared.model}'")
    wanted = [wanted_output(output.name, output.parameters) for output in given.outputs]
    return InferRequest(
        tensors, wanted, given.id, given.parameters,
        binary=given.parameters.get(_BINARY_ALL) is True,
        body=body if as_it_came else b"", header=len(text),
    )  # fmt: skip


def _values(sent: _Input) -> bytes:
    if sent.datatype not in SIZES:
        return b""  # refused by its check
    if sent.data is msgspec.UNSET:
        raise InvalidRequest(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in "
            "'parameters', 'shared_memory_region' in 'parameters'. But no field is set"
        )
    count = count_of(sent.name, sent.datatype, sent.shape)
    return raw_of(sent.datatype, flat(sent.data, count))


def _raw_request(body: bytes, declared: Declaration) -> InferRequest:
    """Return a request whose body is the raw values of the only input."""
    count = len(declared.inputs)
    if count != 1:
        raise InvalidRequest(
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be "
            f"deduced but got {count} inputs in '{declared.model}' model configuration"
        )
    (only,) = declared.inputs
    if only.datatype == BYTES:
        if any(size not in (1, ANY_SIZE) for size in only.shape):
            raise InvalidRequest("For BYTE datatype raw input, the model must have input shape [1]")
        shape = [1] * len(only.shape)
        return InferRequest([Tensor(only.name, BYTES, shape, joined([body]))])
    dims = list(declared.dims_of(only))
    if dims.count(ANY_SIZE) > 1:
        raise InvalidRequest(
            "The shape of the raw input cannot be deduced because there are more than one "
            f"variable-sized dimensions in {shown(dims)}"
        )
    fixed = math.prod(size for size in dims if size != ANY_SIZE) * SIZES[only.datatype]
    if ANY_SIZE in dims:
        if not fixed or len(body) % fixed:
            raise InvalidRequest(
                f"The shape of the raw input '{only.name}' cannot be deduced from its "
                f"{len(body)} bytes"
            )
        dims[dims.index(ANY_SIZE)] = len(body) // fixed
    shape = [1, *dims] if declared.rows_max else dims
    return InferRequest([Tensor(only.name, only.datatype, shape, body)])


def write_response(
    head: dict[str, Any], tensors: Sequence[Tensor], request: InferRequest
) -> tuple[bytes, int]:
    """Return the body of an answer, and the length of its JSON; 0 if that is all of it."""
    binary = {output.name: output.binary for output in request.wanted if output.binary is not None}
    names = {tensor.name for tensor in tensors if not binary.get(tensor.name, request.binary)}
    body, length = write_body(head, "outputs", tensors, names)
    return body, 0 if len(names) == len(tensors) else length
