"""Programs that run without a handler: TorchScript, `torch.export` programs, and ONNX files.

Each kind takes and returns numpy arrays with the batch first, and knows its tensors as far as its
file names them.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.config.model.options import Tensors, TensorSpec
from headrace.errors import ConfigError, HandlerError

logger = logging.getLogger(__name__)

Array = NDArray[Any]

#: A symbol of torch.export, such as s77; it is no name for people.
_SYMBOL: Final = re.compile("^[su][0-9]+$")
_ONNX_TYPE: Final = re.compile(r"^tensor\((\w+)\)$")
_ONNX_NAMES: Final = {"float": "float32", "double": "float64"}


class Program(ABC):
    """A loaded program.

    Attributes:
        tensors: what it takes and returns; None if its file does not name them.
        least: the smallest batch that it takes.
        most: the largest batch that it takes; 0 for any.
    """

    tensors: Tensors | None = None
    least: int = 1
    most: int = 0

    @abstractmethod
    def run(self, inputs: Sequence[Array], names: Sequence[str]) -> list[Array]:
        """Return the outputs for one batch of each input, by `names` where they are a mapping."""


def load_program(path: Path, device: str, *, weights_only: bool = True) -> Program:
    """Return the program in a file; raise ConfigError if it has none, or nothing here runs it."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="correct the model's `weights`")
    suffix = path.suffix.lower()
    try:
        if suffix == ".onnx":
            return OnnxProgram(path, device)
        if suffix == ".pt2":
            return ExportedProgram(path, device)
        return ModuleProgram(path, device, weights_only=weights_only)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}",
            hint="export it again, with the version of torch or onnxruntime that runs here",
        ) from error


class ModuleProgram(Program):
    """A TorchScript module; or a pickled one, which only the operator can allow."""

    def __init__(self, path: Path, device: str, *, weights_only: bool) -> None:
        import torch

        self._device = torch.device(device)
        if _is_torchscript(path):
            with warnings.catch_warnings():
                # torch.export is its successor, but files of this kind remain.
                warnings.simplefilter("ignore", DeprecationWarning)
                load: Any = torch.jit.load
                self._module: Any = load(path, map_location=self._device)
        elif weights_only:
            raise ConfigError(
                f"{path} is no TorchScript program; it may be a state dict, which needs a handler",
                hint="save it with torch.export.save, or name a `handler` that builds the module; "
                "a whole pickled module is loaded with weights_only: false, which runs its code",
            )
        else:
            self._module = torch.load(path, map_location=self._device, weights_only=False)
            if not isinstance(self._module, torch.nn.Module):
                raise ConfigError(
                    f"{path} holds a {type(self._module).__name__} and no module",
                    hint="name a `handler` that builds the module",
                )
        self._module.eval()

    @override
    def run(self, inputs: Sequence[Array], names: Sequence[str]) -> list[Array]:
        import torch

        with torch.inference_mode():
            found = self._module(*(torch.from_numpy(one).to(self._device) for one in inputs))
            return _arrays(_in_order(found, names))


class ExportedProgram(Program):
    """A program of `torch.export`."""

    def __init__(self, path: Path, device: str) -> None:
        import torch

        program = torch.export.load(path)
        if device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
        self._device = torch.device(device)
        self._in_spec: Any = program.call_spec.in_spec
        self._out_spec: Any = program.call_spec.out_spec
        self._module = program.module()
        nodes = {node.name: node for node in program.graph.nodes}
        signature = program.graph_signature
        named = [*signature.user_inputs], [*signature.user_outputs]
        values: list[list[tuple[str, Any]]] = [
            [(str(name), nodes[str(name)].meta.get("val") if str(name) in nodes else None)
             for name in names]
            for names in named
        ]  # fmt: skip
        if self._out_spec.type is dict:
            keys = map(str, self._out_spec.context)
            values[1] = [(key, value) for key, (_, value) in zip(keys, values[1], strict=True)]
        self.tensors = Tensors(
            inputs=[_exported(path, *one) for one in values[0]],
            outputs=[_exported(path, *one) for one in values[1]],
        )
        self.least, self.most = _range(values[0][0][1].shape[0], program.range_constraints)

    @override
    def run(self, inputs: Sequence[Array], names: Sequence[str]) -> list[Array]:
        import torch

        tensors = [torch.from_numpy(one).to(self._device) for one in inputs]
        args, kwargs = self._in_spec.unflatten(tensors)
        with torch.inference_mode():
            found = self._module(*args, **kwargs)
            return _arrays(self._out_spec.flatten_up_to(found))


class OnnxProgram(Program):
    """An ONNX file, run by onnxruntime."""

    def __init__(self, path: Path, device: str) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise ConfigError(
                f"{path} needs onnxruntime, which is not installed",
                hint="pip install 'headrace[onnx]'",
            )
        # As torch: this process' share of the cores.
        self._session = onnx_session(path, device, int(os.environ.get("OMP_NUM_THREADS", "0")))
        self.tensors = Tensors(
            inputs=[_onnx(path, one) for one in self._session.get_inputs()],
            outputs=[_onnx(path, one) for one in self._session.get_outputs()],
        )
        first = self.tensors.inputs[0].shape[0]
        if isinstance(first, int) and first > 0:
            self.least = self.most = first
        self._names = [one.name for one in self.tensors.inputs]

    @override
    def run(self, inputs: Sequence[Array], names: Sequence[str]) -> list[Array]:
        found = self._session.run(None, dict(zip(self._names, inputs, strict=True)))
        return [np.asarray(one) for one in found]


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.endswith("/constants.pkl") for name in file.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def _in_order(found: Any, names: Sequence[str]) -> list[Any]:
    if isinstance(found, Mapping):
        missing = [name for name in names if name not in found]
        if missing:
            raise HandlerError(f"the program returns no {', '.join(missing)}; correct `tensors`")
        return [found[name] for name in names]
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _arrays(tensors: Iterable[Any]) -> list[Array]:
    import torch

    # numpy has no bfloat16.
    plain = (one.float() if one.dtype is torch.bfloat16 else one for one in tensors)
    return [one.detach().cpu().numpy() for one in plain]


def _exported(path: Path, name: str, value: Any) -> TensorSpec:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise ConfigError(
            f"{path}: {name} is not a tensor", hint="export it with tensors as inputs and outputs"
        )
    sizes = (size if isinstance(size, int) else str(size) for size in value.shape)
    shape = [-1 if isinstance(size, str) and _SYMBOL.match(size) else size for size in sizes]
    return _spec(path, name, str(value.dtype).removeprefix("torch."), shape)


def _range(size: Any, constraints: Mapping[Any, Any]) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    found = constraints.get(size.node.expr)
    if found is None:
        return 1, 0
    upper = int(found.upper) if found.upper.is_number and found.upper.is_finite else 0
    return max(1, int(found.lower)), upper if upper < 2**31 else 0


def _onnx(path: Path, value: Any) -> TensorSpec:
    found = _ONNX_TYPE.match(value.type)
    kind = found[1] if found else str(value.type)
    shape = [size if isinstance(size, (int, str)) and size != "" else -1 for size in value.shape]
    return _spec(path, value.name, _ONNX_NAMES.get(kind, kind), shape)


def _spec(path: Path, name: str, dtype: str, shape: list[Any]) -> TensorSpec:
    if not shape:
        raise ConfigError(
            f"{path}: {name} has no batch dimension", hint="export it for batches, batch first"
        )
    return TensorSpec(name=name, dtype=cast("Any", dtype), shape=shape)


def onnx_session(path: Path, device: str, threads: int) -> Any:
    """Return onnxruntime's session of a file; 0 threads are its own choice."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that spin take the cores of other replicas, and of all else: with them, the drawing's
    # detector has 0.5 to 0.7 of the rate (`python -m benchmarks.case_study.drawings sweep`).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    kind, _, number = device.partition(":")
    if kind != "cpu" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": int(number or 0)}))
    elif kind != "cpu":
        logger.warning("%s runs on the CPU: onnxruntime has no CUDA here", path)
    return onnxruntime.InferenceSession(str(path), options, providers=providers)
