"""Measures the host, the GPUs and the model processes of a worker, in a thread.

The GPUs are read from NVIDIA's driver, through NVML; torch is never imported. A driver in trouble
blocks its caller for seconds, so the consumer's loop does not call it. The loop sends the newest
figures with its report each second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import psutil
import pynvml

from headrace.observability.worker_report import DeviceFigures, Figures, HostFigures
from workers.replicas.devices import has_gpu
from workers.replicas.memory import resident_bytes

logger = logging.getLogger(__name__)

#: Seconds between two measurements.
SAMPLE_S: Final = 5.0
#: Older figures are not reported: the thread may hang in a driver.
STALE_S: Final = 30.0
#: Seconds until the next attempt to read the GPUs after an error (no library, or a driver that is
#: being replaced).
AGAIN_S: Final = 60.0
MILLIWATTS: Final = 1000
NOTHING: Final = msgspec.json.encode(Figures())

_encode: Final = msgspec.json.encode

T = TypeVar("T")


class HostMetrics:
    """Measures every few seconds, from `start` to `stop`.

    `processes` returns the pids of the model processes and their helpers, by model; the thread
    calls it. The space is that of the file system of `folder`, which may be created later.
    """

    def __init__(
        self,
        devices: Callable[[], list[DeviceFigures]],
        processes: Callable[[], Mapping[str, list[int]]],
        folder: Path,
        gpu_processes: Callable[[], dict[int, int]] = dict,
    ) -> None:
        self._devices = devices
        self._processes = processes
        self._folder = folder
        self._gpu_processes = gpu_processes
        self._host = socket.gethostname()
        # The figures and when they were measured, replaced together.
        self._last = (Figures(), 0.0)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the thread, which ends with the process."""
        psutil.cpu_percent()
        threading.Thread(target=self._run, name="headrace-host-metrics", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()

    def latest(self) -> bytes:
        """Return the newest `Figures` as JSON; empty ones if they are too old."""
        figures, at = self._last
        return _encode(figures) if time.monotonic() - at <= STALE_S else NOTHING

    def newest(self) -> Figures:
        """Return the newest figures, however old they are."""
        return self._last[0]

    def measure(self) -> Figures:
        """Measure now, and return the figures."""
        return Figures(
            self._measured_host(),
            self._devices(),
            {model: resident_bytes(pids) for model, pids in self._processes().items()},
            self._gpu_processes(),
        )

    def _run(self) -> None:
        while True:
            try:
                self._last = (self.measure(), time.monotonic())
            except Exception:
                # The worker does not depend on the figures.
                logger.warning("host and devices cannot be measured", exc_info=True)
            if self._stopping.wait(SAMPLE_S):
                return

    def _measured_host(self) -> HostFigures:
        memory = psutil.virtual_memory()
        disk_bytes = disk_available_bytes = disk_used_bytes = 0
        with contextlib.suppress(OSError):
            # The folder itself may be created later, or by another component.
            there = (self._folder.absolute(), *self._folder.absolute().parents)
            disk = os.statvfs(next(folder for folder in there if folder.exists()))
            disk_bytes = disk.f_blocks * disk.f_frsize
            disk_available_bytes = disk.f_bavail * disk.f_frsize
            disk_used_bytes = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        return HostFigures(
            name=self._host,
            cpus=os.cpu_count() or 0,
            cpu_ratio=psutil.cpu_percent() / 100,
            memory_bytes=memory.total,
            memory_available_bytes=memory.available,
            disk_bytes=disk_bytes,
            disk_available_bytes=disk_available_bytes,
            disk_used_bytes=disk_used_bytes,
        )


class GpuMetrics:
    """Reads the GPUs that a worker may use.

    CUDA_VISIBLE_DEVICES has their names. Without it the worker has no GPU, as the supervisor sets
    it for each worker.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        named = environ["CUDA_VISIBLE_DEVICES"].split(",") if has_gpu(environ) else []
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

    def processes(self) -> dict[int, int]:
        """Return the GPU memory of each process in bytes, as far as the driver reports it.

        In a container the driver may have other pids than the worker.
        """
        memory: dict[int, int] = {}
        for handle in self._handles or ():
            with contextlib.suppress(pynvml.NVMLError):
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    memory[process.pid] = memory.get(process.pid, 0) + (process.usedGpuMemory or 0)
        return memory


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
        gpu=_supported(_gpu_number, handle),
        temperature_celsius=_supported(
            pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        power_watts=None if power is None else power / MILLIWATTS,
    )


def _gpu_number(handle: Any) -> int:
    if pynvml.nvmlDeviceGetUUID(handle).startswith("MIG-"):
        handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return int(pynvml.nvmlDeviceGetIndex(handle))


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
