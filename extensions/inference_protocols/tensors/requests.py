"""A request of v2: its checks, and its envelope. Errors have Triton's texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from extensions.inference_protocols.tensors.datatypes import (
    BYTES,
    SHOWN_CHARS,
    SIZES,
    Raw,
    elements,
    shown,
    size_of,
)
from extensions.inference_protocols.tensors.declarations import Declaration, fits
from extensions.inference_protocols.tensors.envelope import (
    Envelope,
    RequestedOutput,
    Tensor,
    type_of,
    write_inputs,
)
from headrace.config.inputs.tensors import DeclaredTensor
from headrace.errors import InvalidRequest

#: What a parameter may be.
Value = bool | int | float | str
#: Parameters of tensors.
SHARED: Final = "shared_memory_region"
_BINARY: Final = "binary_data"
_CLASSES: Final = "classification"
#: The most values of BYTES in one tensor: each is looked at.
BYTES_VALUES_MAX: Final = 1_000_000
#: The most names in an error.
_LISTED_MAX: Final = 32
_ROWS_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)


class Unsupported(InvalidRequest, status=501):
    """The protocol has it, and this server does not."""


def no_shared_memory() -> Unsupported:
    """Return the error for shared memory: the client may be on another host than the model."""
    return Unsupported(
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to "
        "enable."
    )


def wanted_output(name: str, parameters: Mapping[str, Value]) -> RequestedOutput:
    """Return an output that a client wants, by its parameters.

    Raises:
        InvalidRequest: a parameter is wrong, or not supported.
    """
    if SHARED in parameters:
        raise no_shared_memory()
    binary, classes = parameters.get(_BINARY), parameters.get(_CLASSES, 0)
    if binary is not None and type(binary) is not bool:
        raise InvalidRequest(f"parameter '{_BINARY}' of output '{name}' is no boolean")
    if type(classes) is not int or classes < 0:
        raise InvalidRequest(f"parameter '{_CLASSES}' of output '{name}' is no number")
    return RequestedOutput(name, binary, classes)


class InferRequest(msgspec.Struct):
    """A request to infer, of any protocol.

    Attributes:
        wanted: the outputs that the client wants; empty for all.
        binary: the client wants raw values of outputs, unless one has its own choice.
        body: all of it as a binary body of v2, as it came; b"" if there is no such form.
        header: the length of the JSON in `body`.
    """

    inputs: list[Tensor]
    wanted: list[RequestedOutput] = []
    id: str = ""
    parameters: dict[str, Value] = {}
    binary: bool = True
    body: bytes = b""
    header: int = 0

    @property
    def about(self) -> str:
        """The beginning of Triton's messages."""
        return f"[request id: {self.id[:SHOWN_CHARS] or '<id_unknown>'}] "


def check(request: InferRequest, declared: Declaration) -> int:
    """Check a request by what its model declares; return how many rows it has.

    Raises:
        InvalidRequest: an input or an output does not fit.
    """
    known = {tensor.name: tensor for tensor in declared.inputs}
    names = [tensor.name for tensor in request.inputs]
    # Most requests have the declared inputs, in their order.
    if request.wanted or names != list(known):
        _check_names(request, names, known, declared)
    rows: int | None = None
    for tensor in request.inputs:
        wanted = known[tensor.name]
        if tensor.datatype not in SIZES:
            raise InvalidRequest(f"invalid datatype for input {tensor.name}")
        if tensor.datatype != wanted.datatype:
            raise InvalidRequest(
                f"{request.about}inference input '{tensor.name}' data-type is '{tensor.datatype}', "
                f"but model '{declared.model}' expects '{wanted.datatype}'"
            )
        size = size_of(tensor.name, tensor.datatype, tensor.shape)
        if not fits(tensor.shape, wanted.shape):
            raise InvalidRequest(
                f"{request.about}unexpected shape for input '{tensor.name}' for model "
                f"'{declared.model}'. Expected {shown(wanted.shape)}, got {shown(tensor.shape)}. "
                + (_ROWS_NOTE if declared.rows_max else "")
            )
        if declared.rows_max:
            if rows is not None and tensor.shape[0] != rows:
                raise InvalidRequest(
                    f"{request.about}input '{tensor.name}' batch size does not match other inputs "
                    f"for '{declared.model}'"
                )
            rows = tensor.shape[0]
        _check_data(request, tensor, size, declared.model)
    if declared.rows_max and rows is not None and rows > declared.rows_max:
        raise InvalidRequest(
            f"{request.about}inference request batch-size must be <= {declared.rows_max} for "
            f"'{declared.model}'"
        )
    return 1 if rows is None else rows


def _check_names(
    request: InferRequest,
    names: Sequence[str],
    known: Mapping[str, DeclaredTensor],
    declared: Declaration,
) -> None:
    for what, given in (("input", names), ("output", [one.name for one in request.wanted])):
        if twice := [name for name, count in Counter(given).items() if count > 1]:
            about = request.about if what == "input" else ""
            name = twice[0][:SHOWN_CHARS]
            raise InvalidRequest(f"{about}{what} '{name}' already exists in request")
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f"unexpected inference input '{name[:SHOWN_CHARS]}' for model '{declared.model}'"
            )
    missing = [one.name for one in known.values() if not one.optional and one.name not in names]
    if missing:
        raise InvalidRequest(
            f"{request.about}expected {len(known)} inputs but got {len(names)} inputs for model "
            f"'{declared.model}'. Got input(s) {_listed(names)}, but missing required input(s) "
            f"{_listed(missing)}. Please provide all required input(s)."
        )
    outputs = [tensor.name for tensor in declared.outputs]
    for wanted in request.wanted if outputs else ():
        if wanted.name not in outputs:
            raise InvalidRequest(
                f"unexpected inference output '{wanted.name[:SHOWN_CHARS]}' for model "
                f"'{declared.model}'"
            )


def _check_data(request: InferRequest, tensor: Tensor, size: int, model: str) -> None:
    if tensor.datatype != BYTES:
        if len(tensor.data) != size:
            raise InvalidRequest(
                f"{request.about}input byte size mismatch for input '{tensor.name}' for model "
                f"'{model}'. Expected {size}, got {len(tensor.data)}"
            )
        return
    if size > BYTES_VALUES_MAX:
        raise InvalidRequest(
            f"{request.about}input '{tensor.name}' has {size} elements of BYTES, more than "
            f"{BYTES_VALUES_MAX}. Send fewer in one request"
        )
    try:
        found = len(elements(tensor.data))
    except ValueError as error:
        raise InvalidRequest(
            f"incomplete string data for inference input '{tensor.name}', {error}"
        ) from None
    if found != size:
        raise InvalidRequest(
            f"{request.about}unexpected number of string elements {found} for inference input "
            f"'{tensor.name}' for model '{model}', expecting {size}"
        )


def envelope_of(request: InferRequest, rows: int) -> Envelope:
    """Return the envelope of a request that was checked, as it came if it can be."""
    if request.body:
        return Envelope(request.body, type_of(request.header, rows))
    return write_inputs(request.inputs, rows, request.wanted)


def element_of(request: InferRequest) -> tuple[bytes, str]:
    """Return the only value of a request for a model without tensors, and its content type.

    The type is "" if the client has not given it, as the input's parameter `content_type`.
    """
    (value,) = elements(request.inputs[0].data)
    return value, str(request.parameters.get("content_type", ""))


def of_value(value: bytes, name: str, **fields: Any) -> InferRequest:
    """Return a request with one value of BYTES."""
    return InferRequest([Tensor(name, BYTES, [1], _one(value))], **fields)


def _one(value: bytes) -> Raw:
    return len(value).to_bytes(4, "little") + value


def _listed(names: Sequence[str]) -> str:
    shown_names = [repr(name[:SHOWN_CHARS]) for name in names[:_LISTED_MAX]]
    more = ",..." if len(names) > _LISTED_MAX else ""
    return f"[{','.join(shown_names)}{more}]"
