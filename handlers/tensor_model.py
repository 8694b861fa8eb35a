"""Runs a program that has no handler: tensors in, named tensors out.

The program is the model's `weights` (.pt, .pt2, .onnx). Its tensors are those of the model's key
`tensors`, else those that its file names. The first dimension is the batch: an input is one row.

An input is a JSON list for a program with one input, else an object with the inputs by name. In
place of a list there may be `{"base64": "..."}`. It has the bytes of an .npy file, or raw ones in C
order and little-endian. `shape` is needed where the tensor has dimensions of any size. A body that
is not JSON is such bytes. A result is an object with the outputs by name.

If the model declares tensors as its `inputs`, an input is arrays by name, of several rows, and so
is its result.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any, Final, Literal

import msgspec
import numpy as np
from typing_extensions import override

from handlers.common.items import ItemHandler, grouped
from handlers.common.tensor_programs import Array, Program, load_program
from headrace.config.model.options import Tensors, TensorSpec, TensorType
from headrace.errors import ConfigError, HandlerError, InputError
from headrace.handler import Context

_NPY: Final = b"\x93NUMPY"
#: Example inputs are not made larger than this.
_EXAMPLE_MAX_BYTES: Final = 64 * 1024 * 1024
_TYPES: Final[tuple[str, ...]] = TensorType.__args__  # type: ignore[attr-defined]

#: The arrays of one job's rows, in the order of the program's inputs.
Item = tuple[Array, ...]


class TensorOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `tensor_model`; docs/handlers.md lists them."""

    results: Literal["lists", "base64"] = "lists"


class TensorModel(ItemHandler):
    """Runs the program in `weights`."""

    preprocess_per_item = True
    options_kind = TensorOptions
    program: Program
    tensors: Tensors
    options: TensorOptions

    @override
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self._load(context, context.device)

    @override
    def initialize_preprocess(self, context: Context) -> None:
        super().initialize_preprocess(context)
        # Only the file may know which tensors it takes.
        self._load(context, "cpu")

    def _load(self, context: Context, device: str) -> None:
        if context.weights is None:
            raise ConfigError(
                f"model {context.model_name}: tensor_model needs a program",
                hint="set `weights` to a .pt, .pt2 or .onnx file",
            )
        self.program = load_program(context.weights, device, weights_only=context.weights_only)
        self.tensors = _tensors(context, self.program)

    @override
    def example_input(self) -> Any:
        """Return zeros; None if the size of a dimension is open."""
        example: dict[str, Any] = {}
        total = 0
        for spec in self.tensors.inputs:
            shape = [size for size in spec.shape[1:] if isinstance(size, int) and size >= 0]
            total += math.prod(shape) * np.dtype(spec.dtype).itemsize
            if len(shape) < len(spec.shape) - 1 or total > _EXAMPLE_MAX_BYTES:
                return None
            if self.context.declared_tensors:
                example[spec.name] = np.zeros((1, *shape), spec.dtype)
                continue
            zeros = np.zeros(shape, spec.dtype).tobytes()
            example[spec.name] = {"base64": base64.b64encode(zeros).decode()}
        return example

    @override
    def item(self, data: Any) -> Item:
        if self.context.declared_tensors:
            return read_rows(data, self.tensors.inputs)
        return tuple(array[np.newaxis] for array in read_item(data, self.tensors.inputs))

    @override
    def inference(self, items: Any) -> Any:
        results: list[Any] = [None] * len(items)
        for places in grouped(items, lambda item: tuple(array.shape[1:] for array in item)):
            for place, row in zip(places, self._rows([items[n] for n in places]), strict=True):
                results[place] = row
        return results

    @override
    def postprocess(self, outputs: Any) -> list[Any]:
        names = [spec.name for spec in self.tensors.outputs]
        if self.context.declared_tensors:
            return [dict(zip(names, rows, strict=True)) for rows in outputs]
        write: Callable[[Array], Any] = _as_base64
        if self.options.results == "lists":
            write = methodcaller("tolist")
        return [dict(zip(names, (write(one[0]) for one in rows), strict=True)) for rows in outputs]

    def _rows(self, items: Sequence[Item]) -> list[Item]:
        """Return the outputs of items whose rows have the same shapes, for each item its rows."""
        columns = [np.concatenate(column) for column in zip(*items, strict=True)]
        count = len(columns[0])
        step = self.program.most or count or 1
        # A request without rows runs too, so that its outputs have their shapes.
        starts = range(0, count, step) if count else [0]
        parts = [self._run([column[at : at + step] for column in columns]) for at in starts]
        whole = [np.concatenate(column) for column in zip(*parts, strict=True)]
        ends = np.cumsum([len(item[0]) for item in items])[:-1]
        return list(zip(*(np.split(output, ends) for output in whole), strict=True))

    def _run(self, batch: list[Array]) -> list[Array]:
        """Return the outputs of a batch that the program can take, once it is filled up."""
        program, names = self.program, [spec.name for spec in self.tensors.outputs]
        count = len(batch[0])
        if not count:
            batch = [np.zeros((program.least, *column.shape[1:]), column.dtype) for column in batch]
        elif count < program.least:
            places = [*range(count), *[count - 1] * (program.least - count)]
            batch = [column[places] for column in batch]
        found = program.run(batch, names)
        if len(found) != len(names):
            raise HandlerError(
                f"the program returns {len(found)} tensors, but {len(names)} are declared"
            )
        for name, output in zip(names, found, strict=True):
            if output.ndim == 0 or len(output) != len(batch[0]):
                raise HandlerError(
                    f"the output {name} has the shape {list(output.shape)} for a batch of "
                    f"{len(batch[0])}; its first dimension must be the batch"
                )
        return [output[:count] for output in found]


def _tensors(context: Context, program: Program) -> Tensors:
    """Return the declared tensors of a model, else those that its file names."""
    label = f"model {context.model_name}"
    if not context.tensors:
        if program.tensors is None:
            raise ConfigError(
                f"{label}: {context.weights} does not name its tensors",
                hint="add the key `tensors`; see docs/models.md",
            )
        tensors = program.tensors
    else:
        tensors = msgspec.convert(context.tensors, Tensors)
        if program.tensors is not None:
            _compare(label, tensors, program.tensors)
    for spec in (*tensors.inputs, *tensors.outputs):
        if spec.dtype not in _TYPES:
            raise ConfigError(
                f"{label}: {spec.name} has the type {spec.dtype}, which inputs cannot have",
                hint=f"export it with one of {', '.join(_TYPES)}",
            )
    return tensors


def _compare(label: str, declared: Tensors, found: Tensors) -> None:
    for what in ("inputs", "outputs"):
        given, own = getattr(declared, what), getattr(found, what)
        if len(given) != len(own):
            names = ", ".join(spec.name for spec in own)
            raise ConfigError(
                f"{label}: tensors.{what} declares {len(given)}, but the file has {len(own)}: "
                f"{names}",
                hint="declare all, or leave `tensors` out",
            )
    for spec, own in zip(declared.inputs, found.inputs, strict=True):
        if spec.dtype != own.dtype or len(spec.shape) != len(own.shape):
            raise ConfigError(
                f"{label}: tensors.inputs: {spec.name} is {spec.dtype} {spec.shape}, but the file "
                f"takes {own.dtype} {own.shape}",
                hint="correct it, or leave `tensors` out",
            )


def read_item(value: Any, specs: Sequence[TensorSpec]) -> Item:
    """Return the arrays of a job's input, in the tensors' order; raise InputError if one is bad."""
    values = _by_name(value, specs)
    sizes: dict[str, tuple[int, str]] = {}
    arrays = []
    for spec in specs:
        array = _array(values[spec.name], spec)
        _check_shape(array.shape, spec, sizes)
        arrays.append(array)
    return tuple(arrays)


def read_rows(value: Any, specs: Sequence[TensorSpec]) -> Item:
    """Return the arrays of one job's rows, in the order of the tensors; errors as `read_item`."""
    values = _by_name(value, specs)
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        array = values[spec.name]
        if array.dtype != np.dtype(spec.dtype):
            raise InputError(f"{spec.name}: expected {spec.dtype}, got {array.dtype}")
        _check_shape(array.shape[1:], spec, sizes)
    if len({len(values[spec.name]) for spec in specs}) > 1:
        raise InputError("the tensors of an input must have the same number of rows")
    return tuple(values[spec.name] for spec in specs)


def _by_name(value: Any, specs: Sequence[TensorSpec]) -> Mapping[str, Any]:
    names = [spec.name for spec in specs]
    if isinstance(value, dict) and not (len(names) == 1 and "base64" in value):
        unknown = [str(name)[:64] for name in value if name not in names]
        missing = [name for name in names if name not in value]
        if unknown or missing:
            what = f"no {missing[0]}" if missing else f"an unknown tensor {unknown[0]!r}"
            raise InputError(f"the input has {what}; it takes {', '.join(names)}")
        return value
    if len(names) > 1:
        raise InputError(f"expected an object with the tensors {', '.join(names)}")
    return {names[0]: value}


def _array(value: Any, spec: TensorSpec) -> Array:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(value), None, spec)
    if isinstance(value, dict):
        try:
            body = base64.b64decode(value["base64"], validate=True)
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise InputError(
                f'{spec.name}: expected a list, or {{"base64": "..."}} with valid base64'
            ) from None
        return _from_bytes(body, value.get("shape"), spec)
    return _from_list(value, spec)


def _from_list(value: Any, spec: TensorSpec) -> Array:
    try:
        found = np.array(value)
    except (ValueError, OverflowError, RecursionError):
        raise InputError(f"{spec.name}: the lists inside have different lengths") from None
    kind = np.dtype(spec.dtype)
    if found.size == 0:
        found = found.astype(kind)
    fits = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[kind.kind]
    if found.dtype.kind not in fits:
        raise InputError(f"{spec.name}: expected {spec.dtype}, got {_kind_name(found, value)}")
    if kind.kind in "iu" and found.size:
        limits = np.iinfo(kind)
        if int(found.min()) < limits.min or int(found.max()) > limits.max:
            raise InputError(f"{spec.name}: a number is out of the range of {spec.dtype}")
    with np.errstate(over="ignore"):
        array = found.astype(kind)
    if kind.kind == "f" and not np.isfinite(array).all() and np.isfinite(found).all():
        raise InputError(f"{spec.name}: a number is out of the range of {spec.dtype}")
    return array


def _kind_name(found: Array, value: Any) -> str:
    if found.dtype.kind == "O":
        return "null or mixed values" if isinstance(value, list) else "no list of numbers"
    names = {"f": "fractions", "i": "integers", "u": "integers", "b": "booleans", "U": "text"}
    return names.get(found.dtype.kind, str(found.dtype))


def _from_bytes(body: bytes, shape: Any, spec: TensorSpec) -> Array:
    """Return the array, in this machine's byte order and writable, as torch wants it."""
    if body.startswith(_NPY):
        return _from_npy(body, spec)
    kind = np.dtype(spec.dtype).newbyteorder("<")
    if shape is None:
        shape = spec.shape[1:]
        if any(isinstance(size, str) or size < 0 for size in shape):
            raise InputError(
                f"{spec.name}: raw bytes need `shape`, as its shape is open: {spec.shape[1:]}; "
                "or send an .npy file"
            )
    if not isinstance(shape, list) or not all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape
    ):
        raise InputError(f"{spec.name}: `shape` must be a list of sizes")
    expected = math.prod(shape) * kind.itemsize
    if len(body) != expected:
        raise InputError(
            f"{spec.name}: expected {expected} bytes of {spec.dtype} {shape}, got {len(body)}"
        )
    return np.frombuffer(body, kind).astype(spec.dtype).reshape(shape)


def _from_npy(body: bytes, spec: TensorSpec) -> Array:
    """Return the array of an .npy file. Its header is checked before memory is taken."""
    file = io.BytesIO(body)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        version = np.lib.format.read_magic(file)
        shape, fortran, kind = read[version](file)
    except (ValueError, KeyError, SyntaxError, TypeError, RecursionError):
        raise InputError(f"{spec.name}: the .npy file is broken") from None
    if kind.hasobject or kind.newbyteorder("=") != np.dtype(spec.dtype):
        raise InputError(f"{spec.name}: expected {spec.dtype}, got an .npy file of {kind}")
    if math.prod(shape) * kind.itemsize != len(body) - file.tell():
        raise InputError(f"{spec.name}: the .npy file is not complete")
    flat = np.frombuffer(body, kind, offset=file.tell()).astype(spec.dtype)
    return np.ascontiguousarray(flat.reshape(shape, order="F" if fortran else "C"))


def _check_shape(shape: Sequence[int], spec: TensorSpec, sizes: dict[str, tuple[int, str]]) -> None:
    """Check an array's shape; dimensions of one name must be equal in all tensors of an input."""
    expected = spec.shape[1:]
    good = len(shape) == len(expected) and all(
        isinstance(size, str) or size in (-1, found)
        for size, found in zip(expected, shape, strict=True)
    )
    if not good:
        raise InputError(
            f"{spec.name}: expected the shape {expected} (without the batch), got {list(shape)}"
        )
    for size, found in zip(expected, shape, strict=True):
        if isinstance(size, str):
            known, other = sizes.setdefault(size, (found, spec.name))
            if known != found:
                raise InputError(
                    f"{spec.name}: its dimension {size} is {found}, but {known} in {other}"
                )


def _as_base64(row: Array) -> dict[str, Any]:
    plain = np.asarray(row)
    body = plain.astype(plain.dtype.newbyteorder("<")).tobytes()
    return {
        "dtype": plain.dtype.name,
        "shape": list(plain.shape),
        "base64": base64.b64encode(body).decode(),
    }
