"""Tensors as arrays: what a handler gets, and what it returns.

What a client got wrong is an InvalidRequest or an InputError, and a wrong result a HandlerError.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from extensions.inference_protocols.tensors.datatypes import (
    BYTES,
    SIZES,
    count_of,
    elements,
    joined,
)
from extensions.inference_protocols.tensors.envelope import (
    RequestedOutput,
    Tensor,
    read_inputs,
    write_outputs,
)
from extensions.inference_protocols.tensors.requests import OUTPUT, fits
from headrace.config.inputs.tensors import DeclaredTensor, has_rows, rows_of
from headrace.errors import HandlerError, InputError, InvalidRequest
from headrace.handler import Response

Array = np.ndarray[Any, Any]
_BF16: Final = "BF16"
#: By the datatypes of v2; BYTES and BF16 have ways of their own.
_DTYPES: Final = {
    datatype: np.dtype(f"<{datatype[0].lower()}{size}")
    for datatype, size in SIZES.items()
    if datatype not in (BYTES, _BF16)
}
_DATATYPES: Final = {dtype: name for name, dtype in _DTYPES.items()}


class TensorInput(dict[str, Array]):
    """The tensors of one job, by name, as the handler gets them.

    Attributes:
        wanted: the outputs that the client wants; empty for all.
    """

    def __init__(self, arrays: Mapping[str, Array], wanted: Sequence[RequestedOutput]) -> None:
        super().__init__(arrays)
        self.wanted = wanted


def read_input(value: Any, content_type: str, declared: Sequence[DeclaredTensor]) -> Any:
    """Return the arrays of an envelope, or of an object of lists. They are views of its bytes."""
    if not isinstance(value, bytes):
        return _of_lists(value, declared) if isinstance(value, dict) else value
    tensors, wanted = read_inputs(value, content_type)
    known = {tensor.name: tensor for tensor in declared}
    rows = rows_of(content_type) if has_rows(declared) else None
    for name, datatype, shape, _ in tensors:
        # A client of the native API may have written the envelope.
        tensor = known.get(name)
        if tensor is None or tensor.datatype != datatype:
            raise InvalidRequest(f"the model has no input {name[:64]!r} of {datatype[:8]}")
        if not fits(shape, tensor.shape) or (rows is not None and shape[0] != rows):
            raise InvalidRequest(f"the input {name!r} has another shape, or other rows")
    return TensorInput({tensor.name: array_of(tensor) for tensor in tensors}, wanted)


def array_of(tensor: Tensor) -> Array:
    """Return a tensor as an array."""
    name, datatype, shape, data = tensor
    try:
        count = count_of(name, datatype, shape)
        if datatype == BYTES:
            flat = np.empty(count, object)
            flat[:] = elements(data)
        else:
            flat = np.frombuffer(data, _dtype_of(datatype))
        return flat.reshape(shape)
    except ValueError as error:
        raise InvalidRequest(f"the tensor {name} cannot be read: {error}") from None


def _of_lists(value: dict[str, Any], declared: Sequence[DeclaredTensor]) -> dict[str, Any]:
    arrays = dict(value)
    for tensor in declared:
        # A handler may take other forms too, such as base64 in an object.
        if not isinstance(value.get(tensor.name), list):
            continue
        try:
            arrays[tensor.name] = _converted(value[tensor.name], tensor.datatype)
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidRequest(f"the tensor {tensor.name}: {error}") from None
    return arrays


def _converted(value: Any, datatype: str) -> Array:
    if datatype != BYTES:
        return np.array(value, _dtype_of(datatype))
    array = np.array(value, object)
    np.frompyfunc(_encoded, 1, 1)(array, out=array)
    return array


def _encoded(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{type(value).__name__} is neither text nor bytes")
    return bytes(value)


def _dtype_of(datatype: str) -> Any:
    if datatype != _BF16:
        return _DTYPES[datatype]
    try:
        import ml_dtypes
    except ImportError:
        raise InvalidRequest(
            "numpy has no BF16. Install ml_dtypes where the model runs, or declare FP16 or FP32"
        ) from None
    return np.dtype(ml_dtypes.bfloat16)


def write_result(result: Any, given: Any, declared: Sequence[DeclaredTensor]) -> Any:
    """Return a result as an envelope if the input was one; else as it is."""
    if not isinstance(given, TensorInput) or isinstance(result, Response):
        return result
    if (
        isinstance(result, str)
        and not result
        and [tensor.datatype for tensor in declared] != [BYTES]
    ):
        # A handler that yields has yielded nothing.
        return Response(*write_outputs(()))
    by_name = _by_name(result, declared)
    known = {tensor.name: tensor for tensor in declared}
    wanted = given.wanted or [RequestedOutput(name) for name in by_name]
    tensors = []
    for name, _, classes in wanted:
        tensor = known.get(name)
        if name not in by_name:
            text = f"the handler returned no output {name!r}; it returned {', '.join(by_name)}"
            # The API has not refused it, as the model has declared no outputs.
            raise HandlerError(text) if tensor is not None else InputError(text)
        array = _as_array(name, by_name[name], tensor)
        if classes:
            array = _best_classes(name, array, classes, tensor.labels if tensor else ())
        tensors.append(_tensor(name, array))
    return Response(*write_outputs(tensors))


def _by_name(result: Any, declared: Sequence[DeclaredTensor]) -> Mapping[str, Any]:
    if isinstance(result, Mapping):
        return {str(name): value for name, value in result.items()}
    if isinstance(result, list) and result and all(isinstance(piece, Mapping) for piece in result):
        return _of_pieces(result, declared)
    if len(declared) == 1:
        return {declared[0].name: result}
    if not declared:
        return {OUTPUT.name: result}
    names = ", ".join(tensor.name for tensor in declared)
    raise HandlerError(f"the result is {type(result).__name__}; return a mapping with {names}")


def _of_pieces(
    pieces: Sequence[Mapping[str, Any]], declared: Sequence[DeclaredTensor]
) -> Mapping[str, Any]:
    """Return what a handler has yielded as one result: each output joined along its first size."""
    known = {tensor.name: tensor for tensor in declared}
    parts: dict[str, list[Array]] = {}
    for piece in pieces:
        for name, value in piece.items():
            array = np.atleast_1d(_as_array(name, value, known.get(name)))
            parts.setdefault(name, []).append(array)
    try:
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}
    except ValueError as error:
        raise HandlerError(f"the pieces cannot be joined: {error}") from None


def _as_array(name: str, value: Any, declared: DeclaredTensor | None) -> Array:
    """Return an output as an array of its declared datatype."""
    value = _of_torch(value)
    datatype = declared.datatype if declared is not None else ""
    try:
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
            if datatype == BYTES or (not datatype and array.dtype.kind in "OSU"):
                array = _converted(array.tolist(), BYTES)
        elif isinstance(value, (str, bytes)):
            array = _converted([value], BYTES)
        elif datatype:
            array = _converted(value, datatype)
        else:
            array = np.asarray(value)
            if array.dtype.kind in "OSU":
                array = _converted(value, BYTES)
    except (ValueError, TypeError, OverflowError) as error:
        raise HandlerError(f"the output {name} is no tensor: {error}") from None
    returned = _datatype_of(name, array)
    if datatype and returned != datatype:
        raise HandlerError(f"the output {name} is {returned}, but the model declares {datatype}")
    return array


def _of_torch(value: Any) -> Any:
    """Return a tensor of torch as an array; anything else as it is."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu().contiguous()
    if value.dtype is torch.bfloat16:
        return value.view(torch.int16).numpy().view(_dtype_of(_BF16))
    return value.numpy()


def _datatype_of(name: str, array: Array) -> str:
    if array.dtype.kind == "O":
        return BYTES
    if array.dtype.name == "bfloat16":
        return _BF16
    datatype = _DATATYPES.get(array.dtype.newbyteorder("<"))
    if datatype is None:
        raise HandlerError(f"the output {name} has the type {array.dtype}, which no tensor has")
    return datatype


def _tensor(name: str, array: Array) -> Tensor:
    datatype = _datatype_of(name, array)
    if datatype == BYTES:
        data = joined(array.flat)
    elif datatype == _BF16 or not array.size:
        data = array.tobytes()
    else:
        plain: Any = np.ascontiguousarray(array, _DTYPES[datatype])
        data = plain.data.cast("B")
    return Tensor(name, datatype, list(array.shape), data)


def _best_classes(name: str, scores: Array, count: int, labels: Sequence[str]) -> Array:
    """Return `value:index[:label]` of the `count` best classes of each row, as bytes.

    The first dimension is the rows, and the last one the classes; one dimension is one row.
    """
    if scores.dtype.kind not in "iuf" and scores.dtype.name != "bfloat16":
        raise HandlerError(f"the output {name} has no scores, so it has no best classes")
    shape = scores.shape if scores.ndim > 1 else (1, *scores.shape)
    # Not -1, which numpy refuses where there are no rows.
    rows = scores.reshape(shape[0], math.prod(shape[1:]))
    count = min(count, rows.shape[1])
    # A stable order: of equal scores the first class comes first.
    best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    classes = np.empty(best.shape, object)
    for (row, place), index in np.ndenumerate(best):
        label = f":{labels[int(index)]}" if index < len(labels) else ""
        score = rows[row, index]
        text = str(score) if rows.dtype.kind in "iu" else f"{float(score):f}"
        classes[row, place] = f"{text}:{index}{label}".encode()
    return classes if scores.ndim > 1 else classes[0]
