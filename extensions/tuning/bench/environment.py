"""What a measurement ran on: hardware, load of the host, versions, options of the model."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec

from extensions.tuning.machine import load_facts
from headrace._version import __version__

_PACKAGES: Final = ("torch", "onnxruntime", "openvino", "numpy", "celery", "redis", "uvloop")
_GOVERNOR: Final = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_CPU_INFO: Final = Path("/proc/cpuinfo")
_MIB: Final = 1 << 20
_GIT_TIMEOUT_S: Final = 5


def environment(options: dict[str, Any], *, server_here: bool) -> dict[str, Any]:
    """Return facts about the host of the generator, and the digest of the model's options.

    Args:
        server_here: the server is on this host, so that the facts are its own too.
    """
    found: dict[str, Any] = {
        "host_is": "generator and server" if server_here else "generator only",
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": _memory_mb(),
        "governor": _text(_GOVERNOR) or "unknown",
        **load_facts(),
        "python": platform.python_version(),
        "versions": {"headrace": __version__, **_versions()},
        "devices": _devices(),
        "commit": _commit(),
    }
    if options:
        text = msgspec.json.encode(options, order="deterministic")
        found["options_digest"] = hashlib.sha256(text).hexdigest()[:16]
    return found


def _cpu() -> str:
    lines = _text(_CPU_INFO).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _memory_mb() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB
    return None


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _devices() -> list[str]:
    """Return the names of the NVIDIA devices."""
    with contextlib.suppress(Exception):  # NVML has an error class for each code
        import pynvml

        pynvml.nvmlInit()
        try:
            handles = [
                pynvml.nvmlDeviceGetHandleByIndex(number)
                for number in range(pynvml.nvmlDeviceGetCount())
            ]
            return [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    return []


def _commit() -> str:
    """Return the commit of the checkout that this code is in; "" if it is installed."""
    folder = Path(__file__).resolve().parents[3]
    if not (folder / ".git").exists():
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_GIT_TIMEOUT_S
        )
        return done.stdout.strip()
    return ""


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text().strip()
    return ""
