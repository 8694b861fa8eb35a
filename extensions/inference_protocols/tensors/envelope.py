"""The form of tensors on the queue and in results: a binary body of v2, all values of it raw.

The bytes are a JSON header and then the values of each tensor, in its order. The content type has
the length of the header and the number of rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from extensions.inference_protocols.tensors.datatypes import Raw
from headrace.config.inputs.tensors import ROWS, TENSORS_TYPE
from headrace.errors import InvalidRequest

_HEADER: Final = "header"
_LENGTH: Final = re.compile(rf";\s*{_HEADER}=([0-9]{{1,18}})(?![^;])")
#: The parameter of a tensor that has the length of its raw values.
DATA_SIZE: Final = "binary_data_size"
_CLASSES: Final = "classification"


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


class Envelope(NamedTuple):
    """Tensors as bytes, with their content type."""

    body: bytes
    content_type: str


class _Row(msgspec.Struct):
    name: str
    datatype: str = ""
    shape: list[int] = []
    parameters: dict[str, Any] = {}


class _Header(msgspec.Struct):
    inputs: list[_Row] = []
    outputs: list[_Row] = []


_DECODE: Final = msgspec.json.Decoder(_Header).decode


def type_of(header: int, rows: int) -> str:
    """Return the content type of an envelope."""
    return f"{TENSORS_TYPE};{_HEADER}={header};{ROWS}={rows}"


def write_inputs(
    tensors: Sequence[Tensor], rows: int = 1, wanted: Sequence[RequestedOutput] = ()
) -> Envelope:
    """Return the inputs of a job as an envelope, with the outputs that its client wants."""
    outputs = [{"name": one.name, "parameters": {_CLASSES: one.classes}} for one in wanted]
    return _write({"inputs": _rows(tensors), "outputs": outputs}, tensors, rows)


def write_outputs(tensors: Sequence[Tensor]) -> Envelope:
    """Return the outputs of a job as an envelope."""
    return _write({"outputs": _rows(tensors)}, tensors, 1)


def _rows(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name, "datatype": one.datatype, "shape": one.shape,
            "parameters": {DATA_SIZE: len(one.data)},
        }
        for one in tensors
    ]  # fmt: skip


def _write(header: dict[str, Any], tensors: Sequence[Tensor], rows: int) -> Envelope:
    text = msgspec.json.encode(header)
    return Envelope(b"".join((text, *(one.data for one in tensors))), type_of(len(text), rows))


def read_inputs(body: bytes, content_type: str) -> tuple[list[Tensor], list[RequestedOutput]]:
    """Return the inputs of an envelope as views of its bytes, and the outputs that are wanted.

    Raises:
        InvalidRequest: it is not an envelope.
    """
    header, rest = _read(body, content_type)
    try:
        wanted = [
            RequestedOutput(one.name, classes=max(0, int(one.parameters.get(_CLASSES, 0))))
            for one in header.outputs
        ]
    except (ValueError, TypeError, OverflowError) as error:
        raise _unreadable(str(error)) from None
    return _tensors(header.inputs, rest), wanted


def read_outputs(body: bytes, content_type: str) -> list[Tensor]:
    """Return the outputs of an envelope as views of its bytes; errors as for `read_inputs`."""
    header, rest = _read(body, content_type)
    return _tensors(header.outputs, rest)


def _read(body: bytes, content_type: str) -> tuple[_Header, memoryview]:
    found = _LENGTH.search(content_type)
    if found is None:
        raise _unreadable(f"the content type has no `{_HEADER}`")
    view, length = memoryview(body), int(found[1])
    try:
        return _DECODE(view[:length]), view[length:]
    except (ValueError, RecursionError) as error:
        raise _unreadable(str(error)) from None


def _tensors(rows: Sequence[_Row], rest: memoryview) -> list[Tensor]:
    tensors = []
    for row in rows:
        size = row.parameters.get(DATA_SIZE)
        if type(size) is not int or not 0 <= size <= len(rest):
            raise _unreadable(f"{row.name} has no `{DATA_SIZE}` that fits")
        tensors.append(Tensor(row.name, row.datatype, row.shape, rest[:size]))
        rest = rest[size:]
    if rest:
        raise _unreadable(f"{len(rest)} bytes are left over")
    return tensors


def _unreadable(why: str) -> InvalidRequest:
    return InvalidRequest(f"the tensors cannot be read: {why}")
