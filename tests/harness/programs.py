"""Programs for tests: TorchScript, torch.export and ONNX files of one small module."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

#: The tensors of `Scaled`, as a models file declares them.
TENSORS: dict[str, Any] = {
    "inputs": [
        {"name": "x", "dtype": "float32", "shape": ["batch", 3]},
        {"name": "scale", "dtype": "float32", "shape": ["batch"]},
    ],
    "outputs": [
        {"name": "y", "dtype": "float32", "shape": ["batch", 3]},
        {"name": "total", "dtype": "float32", "shape": ["batch"]},
    ],
}


class Scaled(nn.Module):
    """Returns (x + weight) * scale, and its sum; the weight is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        y = (x + self.weight) * scale[:, None]
        return {"y": y, "total": y.sum(1)}


class Summed(nn.Module):
    """Returns the sum of each row, which has any length."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


def save_script(path: Path, module: nn.Module) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script: Any = torch.jit.script
        script(module.eval()).save(str(path))
    return path


def save_exported(path: Path, most: int = 64) -> Path:
    """Export `Scaled` for batches from 1 to `most`."""
    batch = torch.export.Dim("batch", min=1, max=most)
    program = torch.export.export(
        Scaled().eval(),
        (torch.zeros(2, 3), torch.zeros(2)),
        dynamic_shapes={"x": {0: batch}, "scale": {0: batch}},
    )
    torch.export.save(program, path)
    return path


def save_onnx(path: Path, batch: str | int = "batch") -> Path:
    """Write y = x + x as ONNX, by the fields of onnx.proto3; x is [batch, 2]."""
    node = _text(1, "x") + _text(1, "x") + _text(2, "y") + _text(4, "Add")
    graph = (
        _bytes(1, node) + _text(2, "g")
        + _bytes(11, _value("x", [batch, 2])) + _bytes(12, _value("y", [batch, 2]))
    )  # fmt: skip
    path.write_bytes(_number(1, 8) + _bytes(7, graph) + _bytes(8, _number(2, 13)))
    return path


def _value(name: str, shape: Sequence[str | int]) -> bytes:
    sizes = [_number(1, size) if isinstance(size, int) else _text(2, size) for size in shape]
    dimensions = b"".join(_bytes(1, size) for size in sizes)
    tensor = _number(1, 1) + _bytes(2, dimensions)
    return _text(1, name) + _bytes(2, _bytes(1, tensor))


def _number(field: int, value: int) -> bytes:
    return struct.pack("BB", field << 3, value)


def _bytes(field: int, body: bytes) -> bytes:
    length = (
        bytes([len(body)]) if len(body) < 128 else bytes([len(body) & 127 | 128, len(body) >> 7])
    )
    return bytes([field << 3 | 2]) + length + body


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())
