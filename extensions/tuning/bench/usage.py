"""What the processes of a server use during a load, if they are on this host.

A thread samples CPU time and memory. psutil finds the process that listens at the address, and what
belongs to it. If the server is elsewhere, or the host has no psutil, there are no figures.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any, Final, NamedTuple

from extensions.tuning.bench.load.targets import Target
from extensions.tuning.bench.measurement import Usage
from extensions.tuning.machine import nvidia_devices
from headrace.config.settings import MIB

_EVERY_S: Final = 0.5
#: Unique memory takes milliseconds to read, so it is read less often.
_MEMORY_EVERY: Final = 4
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
#: The part that a process is, by a word of its command line; the first match counts.
_PARTS: Final = (
    ("workers.model_process", "model"),
    ("redis-server", "redis"),
    ("valkey-server", "redis"),
    ("orphan_guard", ""),
    ("workers", "worker"),
    ("celery", "worker"),
    ("api", "api"),
)


class Meter:
    """Samples processes by part, given by their pids, from `start` to `stop`."""

    def __init__(self, parts: Mapping[str, Iterable[int]]) -> None:
        import psutil

        self._psutil = psutil
        self._processes: dict[str, list[Any]] = {}
        for part, pids in parts.items():
            for pid in sorted(set(pids)):
                with contextlib.suppress(psutil.Error):
                    self._processes.setdefault(part, []).append(psutil.Process(pid))
        #: (time, CPU seconds of each part).
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._memory: dict[str, float] = {}
        self._devices = nvidia_devices()
        #: (time, what the devices do).
        self._device_samples: list[tuple[float, _Device]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._ended.set()
        self._thread.join()

    def usage(self, start_at: float, end_at: float) -> dict[str, Usage]:
        """Return what each part used between two times of `time.monotonic`."""
        found = {
            part: Usage(
                cpu_s=max(0.0, self._cpu_at(part, end_at) - self._cpu_at(part, start_at)),
                memory_mb=self._memory.get(part, 0.0),
                processes=len(processes),
            )
            for part, processes in self._processes.items()
        }
        samples = [one for at, one in self._device_samples if start_at <= at <= end_at]
        # A part that is shorter than the time between two samples has the last one.
        samples = samples or [one for _, one in self._device_samples[-1:]]
        if samples:
            found["device"] = Usage(
                cpu_s=0.0,
                memory_mb=max(one.used_mb for one in samples),
                memory_total_mb=samples[-1].total_mb,
                busy=fmean(one.busy for one in samples),
            )
        return found

    def _cpu_at(self, part: str, at: float) -> float:
        """Return the CPU seconds of a part at a time, between two samples in proportion."""
        import numpy as np

        times, used = zip(*((time_s, cpu[part]) for time_s, cpu in self._samples), strict=True)
        return float(np.interp(at, times, used))

    def _run(self) -> None:
        number = 0
        while True:
            self._sample(memory=number % _MEMORY_EVERY == 0)
            number += 1
            if self._ended.wait(_EVERY_S):
                break
        self._sample(memory=True)

    def _sample(self, *, memory: bool) -> None:
        cpu = {}
        for part, processes in self._processes.items():
            cpu[part] = sum(self._of(process, self._cpu) for process in processes)
            if memory:
                used = sum(self._of(process, self._unique) for process in processes) / MIB
                self._memory[part] = max(self._memory.get(part, 0.0), used)
        self._samples.append((time.monotonic(), cpu))
        if (device := _sampled(self._devices)) is not None:
            self._device_samples.append((time.monotonic(), device))

    def _of(self, process: Any, figure: Any) -> float:
        try:
            return float(figure(process))
        except self._psutil.Error:
            return 0.0

    @staticmethod
    def _cpu(process: Any) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    def _unique(self, process: Any) -> float:
        try:
            return float(process.memory_full_info().uss)
        except (self._psutil.AccessDenied, AttributeError):
            return float(process.memory_info().rss)


class _Device(NamedTuple):
    """What all devices do: memory in MiB, and the mean share of the time with a kernel, 0 to 1."""

    used_mb: float
    total_mb: float
    busy: float


def _sampled(devices: Iterable[Any]) -> _Device | None:
    """Return what the devices do; None without a device."""
    used = total = 0.0
    busy = []
    for handle in devices:
        import pynvml

        with contextlib.suppress(pynvml.NVMLError):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            used += memory.used / MIB
            total += memory.total / MIB
        # A part of a device (MIG) does not have it.
        with contextlib.suppress(pynvml.NVMLError):
            busy.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
    return _Device(used, total, fmean(busy) if busy else 0.0) if total else None


@contextlib.contextmanager
def metered(parts: Mapping[str, Iterable[int]]) -> Iterator[Meter | None]:
    """Sample while the context lasts; None if no process is known, or psutil is missing."""
    meter = None
    if any(parts.values()):
        with contextlib.suppress(ImportError):
            meter = Meter(parts)
            meter.start()
    try:
        yield meter
    finally:
        if meter is not None:
            meter.stop()


def is_local(host: str) -> bool:
    """Return whether an address is one of this host."""
    if host in _LOCAL:
        return True
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    import psutil

    own = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
    return bool(found & own)


def processes_of(target: Target, workers: Iterable[Mapping[str, Any]] = ()) -> dict[str, set[int]]:
    """Return the processes of a target's server by part; empty if it is not on this host.

    Args:
        workers: the workers of the model, as `GET /api/v1/models/{model}` lists them.
    """
    try:
        import psutil
    except ImportError:
        return {}
    host, port, _ = target.address
    if not is_local(host):
        return {}
    parts: dict[str, set[int]] = {}
    for process in _family(psutil, port):
        with contextlib.suppress(psutil.Error):
            part = _part_of(process, target)
            if part:
                parts.setdefault(part, set()).add(process.pid)
    here = socket.gethostname()
    for worker in workers:
        if str(worker.get("node", "")).partition("@")[2] == here:
            parts.setdefault("worker", set()).add(int(worker.get("pid", 0)))
            parts.setdefault("model", set()).update(worker.get("model_pids", ()))
    return {part: found - {0} for part, found in parts.items()}


def _part_of(process: Any, target: Target) -> str:
    if target.protocol == "triton":
        return "server"
    command = process.cmdline()
    words = " ".join(command)
    for word, part in _PARTS:
        if word in words if "-" in word or "." in word or "_" in word else word in command:
            return part
    return ""


def _family(psutil: Any, port: int) -> list[Any]:
    """Return the process that listens on a port, what started it for Headrace, and all below."""
    try:
        listening = {
            one.pid
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid
        }
        found = [psutil.Process(pid) for pid in listening]
        roots = {_root(process) for process in found}
        return [*roots, *(child for root in roots for child in root.children(recursive=True))]
    except psutil.Error:
        return []


def _root(process: Any) -> Any:
    """Return the supervisor of a process, or the process itself."""
    parent = process.parent()
    if parent is not None and {"headrace", "up"} <= set(parent.cmdline()):
        return parent
    return process
