"""The memory that model processes use, and what the host or its container still has for them.

Memory that holds files counts as available: the kernel frees it on demand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import psutil

from workers.replicas.cores import CGROUPS, OWN_CGROUP, cgroup_folders

MIB: Final = 1024 * 1024
#: Per version of cgroups: the file of the limit and the file of the use. The third is the part of
#: the file `memory.stat` that the kernel can free.
_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_mib(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> float:
    """Return how many MiB this process and its children can still allocate."""
    free = [limit - used for limit, used in _limits(cgroups, own)]
    return max(0, min([psutil.virtual_memory().available, *free])) / MIB


def total_mib(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> float:
    """Return how many MiB the host has, or the limit of the container if that is less."""
    return (
        min([psutil.virtual_memory().total, *(limit for limit, _ in _limits(cgroups, own))]) / MIB
    )


def own_mib(pids: list[int]) -> float:
    """Return how many MiB only these processes have, which their ends would free."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            try:
                total += process.memory_full_info().uss
            except (psutil.AccessDenied, AttributeError):
                total += process.memory_info().rss
    return total / MIB


def _limits(cgroups: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and the use of each cgroup that has a limit, in bytes."""
    for folder in cgroup_folders(cgroups, own, "memory"):
        for limit, used, freeable in _FILES:
            with contextlib.suppress(OSError, ValueError, KeyError):
                bytes_max = int((folder / limit).read_text())
                stat = dict(
                    line.split() for line in (folder / "memory.stat").read_text().splitlines()
                )
                yield bytes_max, int((folder / used).read_text()) - int(stat[freeable])


def resident_bytes(pids: Iterable[int]) -> int:
    """Return the resident memory of those of these processes that exist."""
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total
