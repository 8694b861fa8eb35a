"""The form of tensors on the queue and in results: a binary body of v2, all values of it raw.

The bytes are a JSON header and then the values of each tensor, in its order. The content type has
the length of the header and the number of rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from extensions.inference_protocols.tensors.datatypes import Raw, json_of
from headrace.config.inputs.tensors import ROWS, TENSORS_TYPE
from headrace.errors import InvalidRequest

_HEADER: Final = "header"
_LENGTH: Final = re.compile(rf";\s*{_HEADER}=([0-9]{{1,18}})(?![^;])")
#: The parameter of a tensor that has the length of its raw values.
DATA_SIZE: Final = "binary_data_size"
#: The parameter of an output of which the client wants the best classes.
CLASSES: Final = "classification"


class Tensor(NamedTuple):
    """One tensor; `data` is its values, raw and little-endian."""

    name: str
    datatype: str
    shape: list[int]
    data: Raw


class RequestedOutput(NamedTuple):
    """An output that a client wants.

    Attributes:
        binary: it wants its raw values; None for what the request prefers.
        classes: it wants the best classes in place of the values; 0: the values.
    """

    name: str
    binary: bool | None = None
    classes: int = 0


class _Parameters(msgspec.Struct, frozen=True):
    binary_data_size: int = -1
    classification: int = 0


class _Row(msgspec.Struct):
    name: str
    datatype: str = ""
    shape: list[int] = []
    parameters: _Parameters = _Parameters()


class _Header(msgspec.Struct):
    inputs: list[_Row] = []
    outputs: list[_Row] = []


_DECODE: Final = msgspec.json.Decoder(_Header).decode


def type_of(header: int, rows: int) -> str:
    """Return the content type of an envelope."""
    return f"{TENSORS_TYPE};{_HEADER}={header};{ROWS}={rows}"


def write_inputs(
    tensors: Sequence[Tensor], rows: int = 1, wanted: Sequence[RequestedOutput] = ()
) -> tuple[bytes, str]:
    """Return the inputs of a job as an envelope and its type, with the outputs that are wanted."""
    outputs = [{"name": name, "parameters": {CLASSES: classes}} for name, _, classes in wanted]
    body, length = write_body({"inputs": (), "outputs": outputs}, "inputs", tensors)
    return body, type_of(length, rows)


def write_outputs(tensors: Sequence[Tensor]) -> tuple[bytes, str]:
    """Return the outputs of a job as an envelope and its content type."""
    body, length = write_body({}, "outputs", tensors)
    return body, type_of(length, 1)


def write_body(
    head: dict[str, Any], key: str, tensors: Sequence[Tensor], in_json: Collection[str] = ()
) -> tuple[bytes, int]:
    """Return a binary body of v2, and the length of its JSON.

    Args:
        head: the JSON, whose other members stay.
        key: that of the tensors, `inputs` or `outputs`.
        in_json: the names of the tensors whose values are lists in the JSON. It raises
            InvalidRequest for what JSON cannot express.
    """
    rows: list[dict[str, Any]] = []
    raw: list[Raw] = []
    for name, datatype, shape, data in tensors:
        row = {"name": name, "datatype": datatype, "shape": shape}
        if name in in_json:
            rows.append({**row, "data": json_of(datatype, data)})
        else:
            rows.append({**row, "parameters": {DATA_SIZE: len(data)}})
            raw.append(data)
    text = msgspec.json.encode({**head, key: rows})
    return b"".join((text, *raw)), len(text)


def read_inputs(body: bytes, content_type: str) -> tuple[list[Tensor], list[RequestedOutput]]:
    """Return the inputs of an envelope as views of its bytes, and the outputs that are wanted.

    It raises InvalidRequest for what is no envelope.
    """
    header, rest = _read(body, content_type)
    outputs = ((row.name, row.parameters.classification) for row in header.outputs)
    wanted = [RequestedOutput(name, classes=max(0, classes)) for name, classes in outputs]
    return _tensors(header.inputs, rest), wanted


def read_outputs(body: bytes, content_type: str) -> list[Tensor]:
    """Return the outputs of an envelope as views of its bytes; errors as for `read_inputs`."""
    header, rest = _read(body, content_type)
    return _tensors(header.outputs, rest)


def _read(body: bytes, content_type: str) -> tuple[_Header, memoryview]:
    length = _LENGTH.search(content_type)
    if length is None:
        raise _unreadable(f"the content type has no `{_HEADER}`")
    view, end = memoryview(body), int(length[1])
    try:
        return _DECODE(view[:end]), view[end:]
    except (ValueError, RecursionError) as error:
        raise _unreadable(str(error)) from None


def _tensors(rows: Sequence[_Row], rest: memoryview) -> list[Tensor]:
    tensors = []
    for row in rows:
        size = row.parameters.binary_data_size
        if not 0 <= size <= len(rest):
            raise _unreadable(f"{row.name} has no `{DATA_SIZE}` that fits")
        tensors.append(Tensor(row.name, row.datatype, row.shape, rest[:size]))
        rest = rest[size:]
    if rest:
        raise _unreadable(f"{len(rest)} bytes are left over")
    return tensors


def _unreadable(why: str) -> InvalidRequest:
    return InvalidRequest(f"the tensors cannot be read: {why}")
