"""A library in the place of libnvidia-ml.so.1, behind NVIDIA's own Python bindings.

It says what it was told to, whatever the driver of this machine is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_void_p, cast
from dataclasses import dataclass, field
from typing import Any

import pynvml

OK, NOT_SUPPORTED, NOT_FOUND, TOO_SMALL, LOST = 0, 3, 6, 7, 15
GIB = 1024**3


@dataclass
class Gpu:
    """One GPU, as its driver tells of it; None for what it does not support.

    Attributes:
        parent: the place of the GPU that a MIG device is part of.
        processes: the pid and the memory in bytes of each process on it.
    """

    uuid: str
    name: str = "NVIDIA Test 80GB"
    busy: int | None = 75
    used: int | None = 60 * GIB
    total: int = 80 * GIB
    celsius: int | None = 61
    milliwatts: int | None = 415_250
    parent: int = 0
    processes: tuple[tuple[int, int], ...] = ()


TWO = (
    Gpu("GPU-11111111-0000-0000-0000-000000000000"),
    Gpu("GPU-22222222-0000-0000-0000-000000000000", busy=0, used=GIB, celsius=33),
)


@dataclass
class Library:
    """The C functions that the bindings look up by name.

    Attributes:
        error: what every call answers while it is not 0.
        calls: how often each function was called.
    """

    gpus: list[Gpu]
    error: int = 0
    calls: dict[str, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        function = _FUNCTIONS.get(name)
        if function is None:
            raise AttributeError(name)

        def called(*arguments: Any) -> int:
            self.calls[name] = self.calls.get(name, 0) + 1
            return self.error or function(self, *arguments)

        return called


def _by_index(library: Library, index: Any, out: Any) -> int:
    place = int(getattr(index, "value", index))
    if place >= len(library.gpus):
        return NOT_FOUND
    return _give(out, place)


def _by_uuid(library: Library, uuid: Any, out: Any) -> int:
    wanted = getattr(uuid, "value", uuid)
    wanted = wanted.decode() if isinstance(wanted, bytes) else wanted
    places = [n for n, gpu in enumerate(library.gpus) if gpu.uuid == wanted]
    return _give(out, places[0]) if places else NOT_FOUND


def _give(out: Any, place: int) -> int:
    # A handle is a pointer; what it points to is the library's own business.
    cast(out, POINTER(c_void_p))[0] = c_void_p(place + 1)
    return OK


def _place(handle: Any) -> int:
    return (cast(handle, c_void_p).value or 0) - 1


def _gpu(library: Library, handle: Any) -> Gpu:
    return library.gpus[_place(handle)]


def _count(library: Library, out: Any) -> int:
    out._obj.value = len(library.gpus)
    return OK


def _text(of: str) -> Any:
    def answer(library: Library, handle: Any, buffer: Any, _length: Any) -> int:
        buffer.value = str(getattr(_gpu(library, handle), of)).encode()
        return OK

    return answer


def _number(of: str) -> Any:
    def answer(library: Library, handle: Any, *rest: Any) -> int:
        value = getattr(_gpu(library, handle), of)
        if value is None:
            return NOT_SUPPORTED
        rest[-1]._obj.value = value
        return OK

    return answer


def _memory(library: Library, handle: Any, out: Any) -> int:
    gpu = _gpu(library, handle)
    if gpu.used is None:
        return NOT_SUPPORTED
    out._obj.used, out._obj.total, out._obj.free = gpu.used, gpu.total, gpu.total - gpu.used
    return OK


def _rates(library: Library, handle: Any, out: Any) -> int:
    gpu = _gpu(library, handle)
    if gpu.busy is None:
        return NOT_SUPPORTED
    out._obj.gpu, out._obj.memory = gpu.busy, 10
    return OK


def _index(_library: Library, handle: Any, out: Any) -> int:
    out._obj.value = _place(handle)
    return OK


def _parent(library: Library, handle: Any, out: Any) -> int:
    return _give(out, _gpu(library, handle).parent)


def _processes(library: Library, handle: Any, count: Any, rows: Any) -> int:
    found = _gpu(library, handle).processes
    room, count._obj.value = count._obj.value, len(found)
    if room < len(found):
        return TOO_SMALL
    for row, (pid, used) in zip(rows or (), found, strict=False):
        row.pid, row.usedGpuMemory = pid, used
    return OK


_FUNCTIONS: dict[str, Any] = {
    "nvmlInitWithFlags": lambda _library, _flags: OK,
    "nvmlInit_v2": lambda _library: OK,
    "nvmlShutdown": lambda _library: OK,
    "nvmlErrorString": lambda _library, code: f"error {code}".encode(),
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _by_index,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    "nvmlDeviceGetUUID": _text("uuid"),
    "nvmlDeviceGetName": _text("name"),
    "nvmlDeviceGetIndex": _index,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": _rates,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": _parent,
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
    "nvmlDeviceGetTemperature": _number("celsius"),
    "nvmlDeviceGetPowerUsage": _number("milliwatts"),
}


def install(*gpus: Gpu) -> Library:
    """Have the bindings find this library."""
    library = Library(list(gpus))
    bindings: Any = pynvml
    bindings.nvmlLib = library
    bindings._nvmlGetFunctionPointer_cache.clear()
    return library


@contextmanager
def installed(*gpus: Gpu) -> Iterator[Library]:
    """The library while the context lasts."""
    bindings: Any = pynvml
    before = bindings.nvmlLib
    try:
        yield install(*gpus)
    finally:
        bindings.nvmlLib = before
        bindings._nvmlGetFunctionPointer_cache.clear()
