"""Reads a worker's GPUs from NVIDIA's driver, through NVML. Never imports torch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import pynvml

from headrace.observability.host_figures import DeviceFigures

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds until the next attempt after an error (no library, or a driver that is being replaced).
AGAIN_S: Final = 60.0
MILLIWATTS: Final = 1000
_NO_DEVICES: Final = ("", "-1", "none", "NoDevFiles")


class GpuMetrics:
    """Reads the GPUs that a worker may use.

    Args:
        environ: CUDA_VISIBLE_DEVICES has their names. Without it the worker has no GPU, as the
            supervisor sets it for each worker.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        visible = environ.get("CUDA_VISIBLE_DEVICES", "")
        named = [] if visible in _NO_DEVICES else visible.split(",")
        self._names = [name.strip() for name in named]
        self._handles: list[Any] | None = None
        self._again_at = 0.0

    def read(self) -> list[DeviceFigures]:
        """Return the current figures of each device; empty while the driver cannot be read."""
        now = time.monotonic()
        if not self._names or now < self._again_at:
            return []
        try:
            if self._handles is None:
                pynvml.nvmlInit()
                self._handles = [_handle(name) for name in self._names]
            return [_figures(handle) for handle in self._handles]
        except pynvml.NVMLError as error:
            logger.warning("GPUs cannot be read, next attempt in %g s: NVML: %s", AGAIN_S, error)
            self._handles = None
            self._again_at = now + AGAIN_S
            return []


def _handle(name: str) -> Any:
    if name.isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)


def _figures(handle: Any) -> DeviceFigures:
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    memory = _supported(pynvml.nvmlDeviceGetMemoryInfo, handle)
    busy = _supported(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power = _supported(pynvml.nvmlDeviceGetPowerUsage, handle)
    return DeviceFigures(
        id=uuid if uuid.startswith("MIG-") else str(pynvml.nvmlDeviceGetIndex(handle)),
        uuid=uuid,
        name=pynvml.nvmlDeviceGetName(handle),
        busy_ratio=None if busy is None else busy.gpu / 100,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_bytes=None if memory is None else int(memory.total),
        temperature_celsius=_supported(
            pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        power_watts=None if power is None else power / MILLIWATTS,
    )


def _supported(query: Callable[..., T], *arguments: Any) -> T | None:
    """Return a figure; None if the device does not have it, such as a MIG instance."""
    try:
        return query(*arguments)
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_InvalidArgument,
        pynvml.NVMLError_NoPermission,
    ):
        return None
