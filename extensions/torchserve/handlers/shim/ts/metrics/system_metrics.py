"""Metrics of the host, for scripts that collect them as TorchServe does."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any, Final

import psutil
import pynvml

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric

logger = logging.getLogger(__name__)

_MIB: Final = 1024**2
_GIB: Final = 1024**3
#: What the functions have measured.
system_metrics: list[Metric] = []
dimension = [Dimension("Level", "Host")]


def cpu_utilization() -> None:
    """Add the CPU's use since the last call, in percent."""
    _add("CPUUtilization", psutil.cpu_percent(), "percent")


def memory_used() -> None:
    """Add the memory in use, in MiB."""
    _add("MemoryUsed", psutil.virtual_memory().used / _MIB, "MB")


def memory_available() -> None:
    """Add the memory that is available, in MiB."""
    _add("MemoryAvailable", psutil.virtual_memory().available / _MIB, "MB")


def memory_utilization() -> None:
    """Add the memory in use, in percent."""
    _add("MemoryUtilization", psutil.virtual_memory().percent, "percent")


def disk_used() -> None:
    """Add the used space of the disk of `/`, in GiB."""
    _add("DiskUsage", psutil.disk_usage("/").used / _GIB, "GB")


def disk_utilization() -> None:
    """Add the used space of the disk of `/`, in percent."""
    _add("DiskUtilization", psutil.disk_usage("/").percent, "percent")


def disk_available() -> None:
    """Add the free space of the disk of `/`, in GiB."""
    _add("DiskAvailable", psutil.disk_usage("/").free / _GIB, "GB")


def gpu_utilization(num_of_gpu: int | None) -> None:
    """Add the memory and the use of each GPU; nothing without one."""
    if not num_of_gpu or num_of_gpu < 0:
        return
    try:
        pynvml.nvmlInit()
        for index in range(min(num_of_gpu, pynvml.nvmlDeviceGetCount())):
            _add_gpu(index)
    except pynvml.NVMLError as error:
        logger.warning("the GPUs cannot be read: NVML: %s", error)


def _add_gpu(index: int) -> None:
    own = [*dimension, Dimension("device_id", index)]
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    used, total = int(memory.used), int(memory.total)
    system_metrics.append(Metric("GPUMemoryUtilization", 100 * used / total, "percent", own))
    system_metrics.append(Metric("GPUMemoryUsed", used / _MIB, "MB", own))
    busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    system_metrics.append(Metric("GPUUtilization", busy, "percent", own))


def collect_all(mod: ModuleType, num_of_gpu: int | None) -> None:
    """Measure all with the functions of a module, and log each metric, then an empty line."""
    for measure in _MEASURES:
        getattr(mod, measure)()
    mod.gpu_utilization(num_of_gpu)
    for metric in system_metrics:
        logger.info("%s", metric)
    logger.info("")


def _add(name: str, value: Any, unit: str) -> None:
    system_metrics.append(Metric(name, value, unit, dimension))


_MEASURES: Final = (
    "cpu_utilization", "disk_available", "disk_used", "disk_utilization", "memory_available",
    "memory_used", "memory_utilization",
)  # fmt: skip
