"""The cores that a worker may compute with: physical ones, as far as the system lets it use them.

Two hyper-threads of a core share its arithmetic units, so a second thread of a model gains nothing
there. A container's limit is a share of time, which threads on more cores would use up early in
each period and then wait.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

_CPUS: Final = Path("/sys/devices/system/cpu")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUP: Final = Path("/proc/self/cgroup")


@cache
def usable_cores() -> int:
    """Return how many cores this process may compute with; at least 1."""
    return count_cores(allowed_cpus())


def allowed_cpus() -> set[int]:
    """Return the numbers of the logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def count_cores(
    cpus: set[int], sys: Path = _CPUS, cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP
) -> int:
    """Return how many physical cores these logical CPUs have, within the limit of the cgroup.

    Args:
        cpus: the numbers of the logical CPUs.
        sys: the folder of the kernel with a folder for each logical CPU.
        cgroups: the folder where the cgroups are mounted.
        own: the file that names the cgroups of this process.
    """
    cores = len({_siblings(sys, cpu) for cpu in cpus})
    limits = [limit for folder in _cgroup_folders(cgroups, own) for limit in _limits(folder)]
    return max(1, math.ceil(min([cores, *limits])))


def _siblings(sys: Path, cpu: int) -> str:
    """Return a name of the physical core of a logical CPU; its own number if it is not known."""
    path = sys / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def _cgroup_folders(cgroups: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of this process' cgroups and of all above them."""
    with contextlib.suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            # The folder of version 1 has its controllers in another order, and a link `cpu`.
            root = cgroups / "cpu" if controllers else cgroups
            folder = root / name.lstrip("/")
            yield folder
            if folder != root:
                yield from (parent for parent in folder.parents if parent.is_relative_to(root))


def _limits(folder: Path) -> Iterator[float]:
    """Yield the limit of a cgroup in cores, of version 2 or 1, if it has one."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text().split()
        yield int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota = (folder / "cpu.cfs_quota_us").read_text()
        if int(quota) > 0:
            yield int(quota) / int((folder / "cpu.cfs_period_us").read_text())
