"""The GPUs that this machine offers, found without torch, which takes seconds to import."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NVIDIA_SMI: Final = "nvidia-smi"
_NVIDIA_SMI_TIMEOUT_S: Final = 20.0
#: Where MPS has its pipes if CUDA_MPS_PIPE_DIRECTORY does not set it.
_MPS_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108
_UUID = re.compile(r"\(UUID: ((?:GPU|MIG)-[^)]+)\)")


@dataclass(frozen=True, slots=True)
class Device:
    """The device of one worker: a name such as "gpu0", and its CUDA_VISIBLE_DEVICES or ""."""

    name: str
    cuda_visible_devices: str


def worker_devices(environ: Mapping[str, str], workers: int | None) -> list[Device]:
    """Return the device of each worker: a GPU, or the CPU on a machine without GPUs.

    Args:
        environ: the environment, with CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES.
        workers: how many workers; None for one per GPU, or one on a machine without GPUs.
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
    """Return the GPUs, of the `present` UUIDs, that CUDA shows, for CUDA_VISIBLE_DEVICES."""
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return present
    shown = []
    for item in (part.strip() for part in wanted.split(",")):
        known = item.startswith(("GPU-", "MIG-")) and any(uuid.startswith(item) for uuid in present)
        if not known and not (item.isdecimal() and int(item) < len(present)):
            # CUDA ignores all entries after the first unknown one.
            break
        shown.append(item)
    return shown


def list_gpus() -> list[str]:
    """Return the UUIDs of the driver's GPUs; for a split GPU those of its MIG devices."""
    if not any(os.access(Path(at, _NVIDIA_SMI), os.X_OK) for at in os.get_exec_path()):
        return []
    # Imported here because health checks are short.
    import subprocess

    try:
        listed = subprocess.run(
            [_NVIDIA_SMI, "-L"],
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_listing(listed.stdout) if listed.returncode == 0 else []


def mps_runs(environ: Mapping[str, str]) -> bool:
    """Return whether NVIDIA's Multi-Process Service runs here, by the pipe of its daemon."""
    folder = Path(environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_PIPES)
    return (folder / "control").exists()


def parse_listing(text: str) -> list[str]:
    """Parse the output of `nvidia-smi -L`, in which MIG devices follow their GPU."""
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
