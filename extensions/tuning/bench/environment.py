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

from extensions.tuning.machine import cpu_name, load_facts, nvidia_devices
from headrace._version import __version__
from headrace.config.settings import MIB

_PACKAGES: Final = ("torch", "onnxruntime", "openvino", "numpy", "celery", "redis", "uvloop")
_GOVERNOR: Final = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def environment(options: dict[str, Any], *, server_here: bool) -> dict[str, Any]:
    """Return facts about the host of the generator, and the digest of the options in force."""
    found: dict[str, Any] = {
        "host_is": "generator and server" if server_here else "generator only",
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
        "governor": _governor(),
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


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _devices() -> list[str]:
    with contextlib.suppress(Exception):
        import pynvml

        return [str(pynvml.nvmlDeviceGetName(handle)) for handle in nvidia_devices()]
    return []


def _commit() -> str:
    """Return the commit of the checkout that this code is in; "" if it is installed."""
    folder = Path(__file__).resolve().parents[3]
    if not (folder / ".git").exists():
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
        return subprocess.check_output(
            command, stderr=subprocess.DEVNULL, text=True, timeout=5
        ).strip()
    return ""


def _governor() -> str:
    with contextlib.suppress(OSError):
        return _GOVERNOR.read_text().strip()
    return "unknown"
