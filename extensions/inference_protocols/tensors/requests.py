"""What a model declares, and a request of v2: its checks, and its envelope.

What does not fit is an InvalidRequest with Triton's text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from extensions.inference_protocols.tensors.datatypes import (
    BYTES,
    SHOWN_CHARS,
    SIZES,
    count_of,
    elements,
    joined,
    shown,
)
from extensions.inference_protocols.tensors.envelope import (
    CLASSES,
    RequestedOutput,
    Tensor,
    type_of,
    write_inputs,
)
from headrace.config.inputs.tensors import ANY_SIZE, DeclaredTensor, has_rows
from headrace.config.model.catalog import ModelConfig
from headrace.errors import InvalidRequest

#: The tensors of a model that declares none: its whole input and its whole result.
INPUT: Final = DeclaredTensor(name="data", datatype=BYTES, shape=[1])
OUTPUT: Final = DeclaredTensor(name="result", datatype=BYTES, shape=[1])
#: What a parameter may be.
Value = bool | int | float | str
#: Parameters of tensors.
SHARED: Final = "shared_memory_region"
_BINARY: Final = "binary_data"
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


class Declaration(NamedTuple):
    """The tensors of a model.

    Attributes:
        model: the name by which errors know it.
        outputs: empty where it has not declared them.
        rows_max: how many rows a request may have; 0 if its tensors have no rows.
        native: it declares no tensors, so that its input and its result are one value of BYTES.
    """

    model: str
    inputs: Sequence[DeclaredTensor] = (INPUT,)
    outputs: Sequence[DeclaredTensor] = (OUTPUT,)
    rows_max: int = 0
    native: bool = True

    def dims_of(self, tensor: DeclaredTensor) -> list[int]:
        """Return the shape of one row of a tensor, as Triton's configuration has it."""
        return tensor.shape[1:] if self.rows_max else tensor.shape


def declaration_of(model: ModelConfig) -> Declaration:
    """Return what a model declares."""
    tensors = model.inputs.tensors if model.inputs is not None else None
    if tensors is None:
        return Declaration(model.name)
    outputs = (model.outputs.tensors if model.outputs is not None else None) or ()
    rows_max = model.max_batch_size if has_rows(tensors) else 0
    return Declaration(model.name, tensors, outputs, rows_max, native=False)


def fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    """Return whether a shape is one of a declared tensor."""
    return len(shape) == len(declared) and all(
        known in (size, ANY_SIZE) for known, size in zip(declared, shape, strict=True)
    )


class Unsupported(InvalidRequest, status=501):
    """The protocol has it, and this server does not."""


def no_changes() -> Unsupported:
    """Return the error for a change of traces and logs."""
    return Unsupported("traces and logs are set by the settings of the server")


def no_shared_memory() -> Unsupported:
    """Return the error for shared memory: the client may be on another host than the model."""
    return Unsupported(
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to "
        "enable."
    )


def wanted_output(name: str, parameters: Mapping[str, Value]) -> RequestedOutput:
    """Return an output that a client wants, by its parameters."""
    if SHARED in parameters:
        raise no_shared_memory()
    binary, classes = parameters.get(_BINARY), parameters.get(CLASSES, 0)
    if binary is not None and type(binary) is not bool:
        raise InvalidRequest(f"parameter '{_BINARY}' of output '{name}' is no boolean")
    if type(classes) is not int or classes < 0:
        raise InvalidRequest(f"parameter '{CLASSES}' of output '{name}' is no number")
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
    """Check a request by what its model declares; return how many rows it has."""
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
        count = count_of(tensor.name, tensor.datatype, tensor.shape)
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
        _check_data(request, tensor, count, declared.model)
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
    wanted = [output.name for output in request.wanted]
    # A model that declares no outputs may return any.
    outputs = [tensor.name for tensor in declared.outputs] or wanted
    about, model = request.about, f"model '{declared.model}'"
    for what, given, allowed in (("input", names, known), ("output", wanted, outputs)):
        if twice := [name for name, count in Counter(given).items() if count > 1]:
            begin = about if what == "input" else ""
            raise InvalidRequest(
                f"{begin}{what} '{twice[0][:SHOWN_CHARS]}' already exists in request"
            )
        if unknown := [name for name in given if name not in allowed]:
            raise InvalidRequest(
                f"unexpected inference {what} '{unknown[0][:SHOWN_CHARS]}' for {model}"
            )
    needed = (tensor.name for tensor in known.values() if not tensor.optional)
    if missing := [name for name in needed if name not in names]:
        raise InvalidRequest(
            f"{about}expected {len(known)} inputs but got {len(names)} inputs for {model}. Got "
            f"input(s) {_listed(names)}, but missing required input(s) {_listed(missing)}. Please "
            "provide all required input(s)."
        )


def _check_data(request: InferRequest, tensor: Tensor, count: int, model: str) -> None:
    if tensor.datatype != BYTES:
        if (size := count * SIZES[tensor.datatype]) != len(tensor.data):
            raise InvalidRequest(
                f"{request.about}input byte size mismatch for input '{tensor.name}' for model "
                f"'{model}'. Expected {size}, got {len(tensor.data)}"
            )
        return
    if count > BYTES_VALUES_MAX:
        raise InvalidRequest(
            f"{request.about}input '{tensor.name}' has {count} elements of BYTES, more than "
            f"{BYTES_VALUES_MAX}. Send fewer in one request"
        )
    try:
        sent = len(elements(tensor.data))
    except ValueError as error:
        raise InvalidRequest(
            f"incomplete string data for inference input '{tensor.name}', {error}"
        ) from None
    if sent != count:
        raise InvalidRequest(
            f"{request.about}unexpected number of string elements {sent} for inference input "
            f"'{tensor.name}' for model '{model}', expecting {count}"
        )


def envelope_of(request: InferRequest, rows: int) -> tuple[bytes, str]:
    """Return the envelope of a checked request, as it came if it can be, and its content type."""
    if request.body:
        return request.body, type_of(request.header, rows)
    return write_inputs(request.inputs, rows, request.wanted)


def element_of(request: InferRequest) -> tuple[bytes, str]:
    """Return the only value of a request for a model without tensors, and its type, "" for none."""
    (value,) = elements(request.inputs[0].data)
    return value, str(request.parameters.get("content_type", ""))


def of_value(value: bytes, **fields: Any) -> InferRequest:
    """Return a request for a model without tensors."""
    return InferRequest([Tensor(INPUT.name, BYTES, [1], joined([value]))], **fields)


def _listed(names: Sequence[str]) -> str:
    quoted = [repr(name[:SHOWN_CHARS]) for name in names[:_LISTED_MAX]]
    more = ",..." if len(names) > _LISTED_MAX else ""
    return f"[{','.join(quoted)}{more}]"
