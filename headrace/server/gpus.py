"""Which GPUs this machine lets us use, asked without torch: importing it takes seconds."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_NVIDIA_SMI_TIMEOUT_S: Final = 20.0
_UUID = re.compile(r"\(UUID: ((?:GPU|MIG)-[^)]+)\)")


@dataclass(frozen=True, slots=True)
class Device:
    """What one worker gets.

    Attributes:
        name: the first part of its Celery node name, such as "gpu0".
        cuda_visible_devices: what it sees of CUDA; empty for nothing.
    """

    name: str
    cuda_visible_devices: str


def worker_devices(environ: Mapping[str, str], workers: int | None) -> list[Device]:
    """One device for each worker: each GPU, or the CPU where there is none.

    Args:
        environ: CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES are obeyed.
        workers: how many workers; None for one per GPU, or one on a machine without.
    """
    gpus = visible_gpus(environ, list_gpus() if _may_have_gpus(environ) else [])
    if not gpus:
        return [Device(f"cpu{i}", "") for i in range(1 if workers is None else workers)]
    count = len(gpus) if workers is None else workers
    devices = []
    for i in range(count):
        index, turn = i % len(gpus), i // len(gpus)
        name = f"gpu{index}" if turn == 0 else f"gpu{index}-{turn}"
        devices.append(Device(name, gpus[index]))
    return devices


def visible_gpus(environ: Mapping[str, str], present: list[str]) -> list[str]:
    """The GPUs that CUDA would show, as values for CUDA_VISIBLE_DEVICES.

    Args:
        environ: the environment.
        present: the UUIDs of the GPUs, or MIG parts of them, on this machine, in order.
    """
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return present
    shown = []
    for item in (part.strip() for part in wanted.split(",")):
        known = item.startswith(("GPU-", "MIG-")) and any(uuid.startswith(item) for uuid in present)
        if not known and not (item.isdecimal() and int(item) < len(present)):
            # CUDA itself ignores all that stands behind the first entry that it does not know.
            break
        shown.append(item)
    return shown


def list_gpus() -> list[str]:
    """The UUIDs of the GPUs that the driver shows; of the MIG parts where a GPU is split."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_listing(listed.stdout) if listed.returncode == 0 else []


def parse_listing(text: str) -> list[str]:
    """Read the output of `nvidia-smi -L`: a MIG part stands below the GPU that it is part of."""
    found: list[str] = []
    for line in text.splitlines():
        match = _UUID.search(line)
        if match is None:
            continue
        uuid = match.group(1)
        if uuid.startswith("MIG-") and found and found[-1].startswith("GPU-"):
            # A process cannot use a split GPU as a whole.
            found.pop()
        found.append(uuid)
    return found


def _may_have_gpus(environ: Mapping[str, str]) -> bool:
    if environ.get("NVIDIA_VISIBLE_DEVICES") == "none":
        return False
    return environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
