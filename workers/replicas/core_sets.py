"""The cores to which the model processes of a worker are pinned.

With `cores` no two core sets have a core in common; with `numa` a core set is a NUMA node, which
processes share. Only the first hyper-thread of a core is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal

from typing_extensions import override

from workers.replicas.cores import Core, WorkerCores, write_cpus

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
