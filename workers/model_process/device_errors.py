"""Whether an error has taken the device with it, so that this process can run nothing more on it.

After some errors, such as a device-side assert, every later call to CUDA fails in that process. To
split the batch there would fail all of it. Runs in the model process.
"""

from __future__ import annotations

import sys


def device_lost(error: BaseException) -> bool:
    """Whether nothing more can run on the device since a verb has raised this.

    What CUDA says of itself differs from version to version, so the device is asked. That waits for
    what runs on it, and is no cost where nothing was ever run there.
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
