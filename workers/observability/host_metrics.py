"""Measures the host, the devices and the model processes of a worker, beside its loop.

A thread of its own, since a driver in trouble lets its caller wait for seconds. The loop takes what
was measured last along with what it says each second anyway.
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
from typing import Final

import msgspec
import psutil

from headrace.observability.host_figures import DeviceFigures, Figures, HostFigures

logger = logging.getLogger(__name__)

#: How often it is measured.
SAMPLE_S: Final = 5.0
#: What is older is told no more: the thread hangs in a driver, say.
STALE_S: Final = 30.0
NOTHING: Final = msgspec.json.encode(Figures())

_encode: Final = msgspec.json.encode


class HostMetrics:
    """Measures every few seconds, from `start` to `stop`.

    Args:
        devices: reads the devices.
        processes: the pids of the model processes and of what belongs to them, by model; called
            from the thread.
        folder: a folder of the file system whose space is told; it need not be there.
    """

    def __init__(
        self,
        devices: Callable[[], list[DeviceFigures]],
        processes: Callable[[], Mapping[str, list[int]]],
        folder: Path,
    ) -> None:
        self._devices = devices
        self._processes = processes
        self._folder = folder
        self._host = socket.gethostname()
        # Bytes and when they were measured, replaced as one.
        self._last: tuple[bytes, float] = (NOTHING, 0.0)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin, in a thread that keeps nobody alive."""
        psutil.cpu_percent()
        threading.Thread(target=self._run, name="headrace-gauges", daemon=True).start()

    def stop(self) -> None:
        """Measure no more."""
        self._stopping.set()

    def latest(self) -> bytes:
        """What was measured last, as JSON of `Figures`; empty ones where that is too old."""
        told, at = self._last
        return told if time.monotonic() - at <= STALE_S else NOTHING

    def measure(self) -> Figures:
        """Measure now."""
        return Figures(
            self._measured_host(),
            self._devices(),
            {model: _resident(pids) for model, pids in self._processes().items()},
        )

    def _run(self) -> None:
        while True:
            try:
                self._last = (_encode(self.measure()), time.monotonic())
            except Exception:
                # A view only: the worker goes on without it.
                logger.warning("host and devices cannot be measured", exc_info=True)
            if self._stopping.wait(SAMPLE_S):
                return

    def _measured_host(self) -> HostFigures:
        memory = psutil.virtual_memory()
        disk_bytes = disk_available_bytes = 0
        with contextlib.suppress(OSError):
            # The folder itself may be made later, or by another part.
            there = (self._folder.absolute(), *self._folder.absolute().parents)
            disk = os.statvfs(next(folder for folder in there if folder.exists()))
            disk_bytes = disk.f_blocks * disk.f_frsize
            disk_available_bytes = disk.f_bavail * disk.f_frsize
        return HostFigures(
            name=self._host,
            cpus=os.cpu_count() or 0,
            cpu_ratio=psutil.cpu_percent() / 100,
            memory_bytes=memory.total,
            memory_available_bytes=memory.available,
            disk_bytes=disk_bytes,
            disk_available_bytes=disk_available_bytes,
        )


def _resident(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total
