"""Sends what `preprocess` returned to the model process: arrays in shared memory, without pickle.

Values are sent as msgpack. An array is a reference in it: kind, type, shape, and its place in a
buffer of shared memory. A buffer is an unlinked file in memory, and its descriptor is sent over a
socket, so nothing is left behind however the processes end. A buffer is used again once the last
array that was read from it is freed. Its pages stay mapped in the process that fills it.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from headrace.errors import HandlerError
from workers.model_process.outcomes import RaisedError, failure

#: The extension types of our msgpack.
ARRAY_EXT: Final = 1
ERROR_EXT: Final = 2
#: Arrays begin at multiples of it, in bytes: enough for any type and for vector units.
ALIGN: Final = 64
_POPULATE: Final = getattr(mmap, "MAP_POPULATE", 0)


@dataclass(slots=True)
class SharedBuffer:
    """A buffer of shared memory that a single process fills."""

    fd: int
    size: int = 0
    memory: mmap.mmap | None = None

    @classmethod
    def new(cls) -> SharedBuffer:
        """Return an empty buffer."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("headrace", os.MFD_CLOEXEC))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def fill(self, arrays: list[tuple[int, np.ndarray[Any, Any]]], size: int) -> None:
        """Copy arrays of bytes in, each to its offset; the buffer grows as needed."""
        if size > self.size:
            os.ftruncate(self.fd, size)
            self.memory, self.size = mmap.mmap(self.fd, size), size
        for offset, array in arrays:
            if array.size and self.memory is not None:
                to = np.frombuffer(self.memory, dtype=np.uint8, count=array.size, offset=offset)
                np.copyto(to, array)


@dataclass(slots=True)
class Packer:
    """Writes values as msgpack, and collects their arrays."""

    arrays: list[tuple[int, np.ndarray[Any, Any]]] = field(default_factory=list)
    size: int = 0

    def pack(self, values: Any) -> bytes:
        """Return the values as msgpack, without their arrays; raise HandlerError if one fails."""
        try:
            return msgspec.msgpack.Encoder(enc_hook=self._reference).encode(values)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise HandlerError(
                f"preprocess returned a value that cannot be sent to the model process: {error}; "
                "return tensors, arrays, numbers, text, bytes, and lists and mappings of these"
            ) from error

    def _reference(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            return msgspec.msgpack.Ext(ERROR_EXT, msgspec.msgpack.encode(failure(value)))
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array("numpy", *_numpy_bytes(np.asarray(value)))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._array("torch", *_tensor_bytes(value))
        raise TypeError(f"{type(value).__module__}.{type(value).__qualname__}")

    def _array(
        self, kind: str, dtype: str, shape: list[int], flat: np.ndarray[Any, Any]
    ) -> msgspec.msgpack.Ext:
        offset = -(-self.size // ALIGN) * ALIGN
        self.size = offset + flat.size
        self.arrays.append((offset, flat))
        reference = msgspec.msgpack.encode([kind, dtype, shape, offset, flat.size])
        return msgspec.msgpack.Ext(ARRAY_EXT, reference)


def unpack(packed: bytes, fd: int, size: int, free: Callable[[], None]) -> Any:
    """Return the values that `Packer.pack` packed, with arrays that read shared memory.

    `free` is called when the last of the arrays is freed, or at once if `size` is 0.
    """
    memory = None
    if size:
        # A mapping for each batch: when it is freed, no array reads the buffer any more.
        memory = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | _POPULATE)
        weakref.finalize(memory, free).atexit = False
    else:
        free()

    def read(code: int, data: memoryview) -> Any:
        if code == ERROR_EXT:
            return RaisedError(msgspec.msgpack.decode(data))
        return _array_at(memory, *msgspec.msgpack.decode(data))

    return msgspec.msgpack.Decoder(ext_hook=read).decode(packed)


def _numpy_bytes(array: np.ndarray[Any, Any]) -> tuple[str, list[int], np.ndarray[Any, Any]]:
    if array.dtype.hasobject or array.dtype.names:
        raise TypeError(f"an array of {array.dtype}")
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return array.dtype.str, list(array.shape), flat


def _tensor_bytes(tensor: Any) -> tuple[str, list[int], np.ndarray[Any, Any]]:
    import torch

    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"a tensor on {tensor.device} in layout {tensor.layout}")
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), flat


def _array_at(
    memory: mmap.mmap | None, kind: str, dtype: str, shape: list[int], offset: int, size: int
) -> Any:
    buffer: Any = memory if size and memory is not None else bytearray(size)
    at = offset if size else 0
    if kind == "numpy":
        flat = np.frombuffer(buffer, dtype=np.uint8, count=size, offset=at)
        return flat.view(np.dtype(dtype)).reshape(shape)
    import torch

    if not size:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    flat_tensor = torch.frombuffer(buffer, dtype=torch.uint8, count=size, offset=at)
    return flat_tensor.view(getattr(torch, dtype)).reshape(shape)
