"""Classifies errors by what they mean for the device: out of memory, or lost for this process.

After some errors, such as a device-side assert, every later call to CUDA fails in the process. Then
splitting the batch would fail all of it. Runs in the model process.
"""

from __future__ import annotations

import sys
from typing import Final

from headrace.errors import OutOfMemory
from workers.model_process.batch_state import RaisedError

#: Texts of torch's errors that have no class: its CPU allocator, cuBLAS and cuDNN.
_NO_MEMORY: Final = ("can't allocate memory", "not enough memory: you tried", "_ALLOC_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that the host or the device has no memory left."""
    if isinstance(error, RaisedError):
        return bool(error.outcome[1] == OutOfMemory.code)
    if isinstance(error, (MemoryError, OutOfMemory)):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the class may be the handler's own
        return False
    return any(words in text for words in _NO_MEMORY)


def device_lost(error: BaseException) -> bool:
    """Return whether nothing more can run on the device after a verb raised this error.

    CUDA's error texts differ between versions, so the device itself is probed. The probe waits for
    what runs on the device. It costs nothing in a process that has not used CUDA.
    """
    torch = sys.modules.get("torch")
    if torch is None or isinstance(error, torch.OutOfMemoryError):
        return False
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
