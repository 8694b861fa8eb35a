"""This machine: its CPU, devices and load, and the warning of measurements that it spoils."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

#: From this part of the cores on, other programs change the figures of a measurement.
_BUSY: Final = 0.5


def cpu_name() -> str:
    """Return the name of the CPU, else that of its architecture."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def nvidia_devices() -> list[Any]:
    """Return NVML's handles of the devices; NVML stays open until this process ends."""
    with contextlib.suppress(Exception):  # NVML has an error class for each code
        import pynvml

        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
    return []


def load_average() -> float | None:
    """Return the load average of the last minute; None where the system has none."""
    with contextlib.suppress(OSError):
        return round(os.getloadavg()[0], 2)
    return None


def load_facts() -> dict[str, Any]:
    """Return what `busy_warning` needs, for the environment of a measurement that begins now."""
    # The load average is that of the whole host, whatever cores this process may use.
    return {"load_before": load_average(), "host_cores": os.cpu_count() or 1}


def busy_warning(environment: Mapping[str, Any]) -> str:
    """Return the warning of an environment with `load_facts`; "" if the machine was quiet."""
    load, cores = environment.get("load_before"), environment.get("host_cores")
    # Files that were written elsewhere may have anything.
    if not isinstance(load, int | float) or not isinstance(cores, int) or load < cores * _BUSY:
        return ""
    noun = "core" if cores == 1 else "cores"
    return (
        f"The machine was busy before the measurement: load average {load:.1f} on {cores} {noun}. "
        "So times are too long, rates are too low, and both vary. Measure again when the load "
        f"average is below {cores * _BUSY:g}; it falls within minutes after other work has ended."
    )
