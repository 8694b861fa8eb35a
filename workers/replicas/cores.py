"""The cores that a worker may compute with: physical ones, as far as the system lets it use them.

Two hyper-threads of a core share its arithmetic units, so a second thread of a model gains nothing
there. A container's limit is a share of time, which threads on more cores would use up early in
each period and then wait.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, Literal, NamedTuple

from typing_extensions import override

#: This worker's number among those of its host, such as "1/2"; a supervisor that starts
#: several workers sets it.
ENV_SHARE: Final = "HEADRACE_WORKER_SHARE"

_CPUS: Final = Path("/sys/devices/system/cpu")
_NODES: Final = Path("/sys/devices/system/node")
CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")
_NODE: Final = re.compile(r"node(\d+)")
_SHARE: Final = re.compile(r"(\d+)/(\d+)")


class Core(NamedTuple):
    """A physical core; `cpu` is its first hyper-thread that this process may use."""

    node: int
    cpu: int


@dataclass(frozen=True, slots=True)
class WorkerCores:
    """The cores of a worker.

    Attributes:
        count: how many it computes with; at least 1.
        cores: its physical cores, by NUMA node. There are more than `count` if a cgroup limits it.
        cpus: how many logical CPUs the process may run on.
        allowed: how many physical cores these have.
        limit: the limit of the cgroup in cores; None: it has none.
        share: which of how many workers of this host it is.
    """

    count: int
    cores: tuple[Core, ...]
    cpus: int
    allowed: int
    limit: float | None
    share: tuple[int, int]

    @override
    def __str__(self) -> str:
        words = [f"{self.allowed} physical cores in {self.cpus} logical CPUs"]
        if self.cpus > self.allowed:
            words.append("hyper-threads left out")
        if self.limit is not None and self.limit < self.allowed:
            words.append(f"the container's limit is {self.limit:g} cores")
        number, workers = self.share
        if workers > 1:
            words.append(f"worker {number + 1} of {workers} on this host")
        if self.count != self.allowed:
            words.append(f"cores of this worker: {self.count}")
        return ", ".join(words)


@cache
def own_cores() -> WorkerCores:
    """Return the cores of this worker."""
    return worker_cores(allowed_cpus(), os.environ)


def usable_cores() -> int:
    """Return how many cores this process may compute with; at least 1."""
    return own_cores().count


def allowed_cpus() -> set[int]:
    """Return the numbers of the logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def worker_cores(
    cpus: Collection[int],
    environ: Mapping[str, str],
    sys: Path = _CPUS,
    nodes: Path = _NODES,
    cgroups: Path = CGROUPS,
    own: Path = OWN_CGROUP,
) -> WorkerCores:
    """Return the cores of a worker that may use these logical CPUs; `environ` has its share.

    The paths are those of the kernel, for the CPUs, the NUMA nodes and the cgroups.
    """
    cores = physical_cores(cpus, sys, nodes)
    limit = min(
        (cores_max for folder in cgroup_folders(cgroups, own) for cores_max in _limits(folder)),
        default=None,
    )
    number, workers = share = _share(environ)
    own_part = cores[len(cores) * number // workers : len(cores) * (number + 1) // workers]
    # With more workers than cores, several share a core.
    own_part = own_part or [cores[number % len(cores)]]
    count = float(len(own_part))
    if limit is not None:
        count = min(count, limit if workers == 1 else math.ceil(limit) // workers)
    return WorkerCores(
        max(1, math.ceil(count)), tuple(own_part), len(cpus), len(cores), limit, share
    )


def physical_cores(cpus: Collection[int], sys: Path = _CPUS, nodes: Path = _NODES) -> list[Core]:
    """Return the physical cores of logical CPUs, by NUMA node; a node is 0 if it is not known."""
    node_of: dict[int, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for folder in nodes.iterdir():
            if match := _NODE.fullmatch(folder.name):
                listed = read_cpus((folder / "cpulist").read_text())
                node_of |= dict.fromkeys(listed, int(match.group(1)))
    first: dict[str, int] = {}
    for cpu in sorted(cpus):
        first.setdefault(_siblings(sys, cpu), cpu)
    return sorted(Core(node_of.get(cpu, 0), cpu) for cpu in first.values())


def read_cpus(text: str) -> list[int]:
    """Return the numbers in a list of the kernel, such as "0-3,8".

    Raises:
        ValueError: it is no such list.
    """
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        numbers += range(int(low), int(high or low) + 1)
    return numbers


def write_cpus(cpus: Sequence[int]) -> str:
    """Return numbers in increasing order as a list of the kernel."""
    parts: list[str] = []
    low = high = -1
    for cpu in cpus:
        if parts and cpu == high + 1:
            parts.pop()
        else:
            low = cpu
        high = cpu
        parts.append(f"{low}-{high}" if high > low else str(low))
    return ",".join(parts)


def _share(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return this worker's number, and how many there are; 0 of 1 without a valid share."""
    match = _SHARE.fullmatch(environ.get(ENV_SHARE, ""))
    number, workers = map(int, match.groups()) if match else (0, 1)
    return (number, workers) if number < workers else (0, 1)


def _siblings(sys: Path, cpu: int) -> str:
    """Return a name of the physical core of a logical CPU; its own number if it is not known."""
    path = sys / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def cgroup_folders(
    cgroups: Path = CGROUPS, own: Path = OWN_CGROUP, controller: str = "cpu"
) -> Iterator[Path]:
    """Yield the folders of this process' cgroups, and of all above them, that have a controller."""
    with contextlib.suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            # The folder of version 1 has its controllers in another order, and a link `cpu`.
            root = cgroups / controller if controllers else cgroups
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


#: The setting `pin_cores`.
Pinning = Literal["off", "cores", "numa"]
#: The logical CPUs of a core set, in increasing order.
CoreSet = tuple[int, ...]

NOT_PINNED: Final[CoreSet] = ()


class CoreSets:
    """Gives each model process of a worker a core set; without core sets, none is pinned."""

    def __init__(self, core_sets: Sequence[CoreSet] = ()) -> None:
        self._taken = dict.fromkeys(core_sets, 0)

    def __len__(self) -> int:
        return len(self._taken)

    @override
    def __str__(self) -> str:
        return "; ".join(f"CPUs {write_cpus(core_set)}" for core_set in self._taken)

    def take(self, preferred: CoreSet = NOT_PINNED) -> CoreSet:
        """Return the preferred core set, else that which the fewest processes have."""
        if not self._taken:
            return NOT_PINNED
        core_set = (
            preferred if preferred in self._taken else min(self._taken, key=self._taken.__getitem__)
        )
        self._taken[core_set] += 1
        return core_set

    def free(self, core_set: CoreSet) -> None:
        """Note that a process no longer uses a core set."""
        if core_set in self._taken:
            self._taken[core_set] -= 1


def core_sets_of(cores: Sequence[Core], threads: int, pinning: Pinning) -> list[CoreSet]:
    """Return the core sets for processes with this number of threads.

    A core set is within a NUMA node, unless a node has too few cores for that.
    """
    nodes = [[core.cpu for core in of] for _, of in groupby(cores, key=attrgetter("node"))]
    if pinning == "off" or not nodes:
        return []
    if pinning == "numa":
        return [tuple(sorted(cpus)) for cpus in nodes]
    sets, left = [], []
    for cpus in nodes:
        whole = len(cpus) // threads * threads
        sets += [tuple(cpus[at : at + threads]) for at in range(0, whole, threads)]
        left += cpus[whole:]
    whole = len(left) // threads * threads
    sets += [tuple(sorted(left[at : at + threads])) for at in range(0, whole, threads)]
    return sets or [tuple(sorted(left))]


def why_not_pinned(cores: WorkerCores, pinning: Pinning) -> str:
    """Return in words why a worker does not pin its processes; "" if it can or should not."""
    if pinning != "off" and cores.limit is not None and cores.limit < cores.allowed:
        return (
            f"pin_cores is {pinning}, but the container's limit of {cores.limit:g} cores is a "
            "share of time. So others may pin to the same cores; give it cores of its own "
            "(docker run --cpuset-cpus)"
        )
    return ""
