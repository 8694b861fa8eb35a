"""Measures the host, the devices and the model processes of a worker, in a thread.

A driver in trouble blocks its caller for seconds, so the consumer's loop does not call it. The loop
sends the newest figures with its report each second.
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

#: Seconds between two measurements.
SAMPLE_S: Final = 5.0
#: Older figures are not reported: the thread may hang in a driver.
STALE_S: Final = 30.0
NOTHING: Final = msgspec.json.encode(Figures())

_encode: Final = msgspec.json.encode


class HostMetrics:
    """Measures every few seconds, from `start` to `stop`.

    Args:
        devices: reads the devices.
        processes: returns the pids of the model processes and their helpers, by model; called in
            the thread.
        folder: a folder of the file system whose space is reported; it may be created later.
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
        # The bytes and when they were measured, replaced together.
        self._last: tuple[bytes, float] = (NOTHING, 0.0)
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
        return figures if time.monotonic() - at <= STALE_S else NOTHING

    def measure(self) -> Figures:
        """Measure now, and return the figures."""
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
                # The worker does not depend on the figures.
                logger.warning("host and devices cannot be measured", exc_info=True)
            if self._stopping.wait(SAMPLE_S):
                return

    def _measured_host(self) -> HostFigures:
        memory = psutil.virtual_memory()
        disk_bytes = disk_available_bytes = 0
        with contextlib.suppress(OSError):
            # The folder itself may be created later, or by another component.
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
