"""The GPUs of this machine, as tests and benchmarks see them. Never imports torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from headrace.server.gpus import Device, worker_devices

_NAMES = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps([torch.cuda.get_device_name(n) for n in range(count)]))
"""


@cache
def cuda_names() -> tuple[str, ...]:
    """The cards that torch can use; asked in a process of its own, if there is a driver."""
    if shutil.which("nvidia-smi") is None and not Path("/dev/nvidiactl").exists():
        return ()
    done = subprocess.run(
        [sys.executable, "-c", _NAMES], capture_output=True, text=True, timeout=300, check=True
    )
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def gpus() -> list[Device]:
    """What one worker per GPU would get."""
    return worker_devices(os.environ, None)


def used_mib(device: Device) -> float:
    """How much memory of a GPU is taken, by whomever, as its driver says."""
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits",
         "-i", device.cuda_visible_devices],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return float(done.stdout)
