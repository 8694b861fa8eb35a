"""The cores to which the model processes of a worker are pinned.

A seat is a set of cores. With `cores` each process has the only seat of its cores; with `numa` a
seat is a NUMA node, which processes share. Only the first hyper-thread of a core is used.
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
#: The logical CPUs of one seat, in increasing order.
Seat = tuple[int, ...]

NOT_PINNED: Final[Seat] = ()


class Seats:
    """Gives each model process of a worker a seat; without seats none is pinned.

    Args:
        seats: all seats.
    """

    def __init__(self, seats: Sequence[Seat] = ()) -> None:
        self._taken = dict.fromkeys(seats, 0)

    def __len__(self) -> int:
        return len(self._taken)

    @override
    def __str__(self) -> str:
        return "; ".join(f"CPUs {write_cpus(seat)}" for seat in self._taken)

    def take(self, preferred: Seat = NOT_PINNED) -> Seat:
        """Return the preferred seat, else the one that the fewest processes have."""
        if not self._taken:
            return NOT_PINNED
        seat = (
            preferred if preferred in self._taken else min(self._taken, key=self._taken.__getitem__)
        )
        self._taken[seat] += 1
        return seat

    def free(self, seat: Seat) -> None:
        """Note that a process has left its seat."""
        if seat in self._taken:
            self._taken[seat] -= 1


def seats_of(cores: Sequence[Core], threads: int, pinning: Pinning) -> list[Seat]:
    """Return the seats for processes with this number of threads.

    A seat is within one NUMA node, unless a node has too few cores for one.
    """
    nodes = [[core.cpu for core in of] for _, of in groupby(cores, key=attrgetter("node"))]
    if pinning == "off" or not nodes:
        return []
    if pinning == "numa":
        return [tuple(sorted(cpus)) for cpus in nodes]
    seats, left = [], []
    for cpus in nodes:
        whole = len(cpus) // threads * threads
        seats += [tuple(cpus[at : at + threads]) for at in range(0, whole, threads)]
        left += cpus[whole:]
    whole = len(left) // threads * threads
    seats += [tuple(sorted(left[at : at + threads])) for at in range(0, whole, threads)]
    return seats or [tuple(sorted(left))]


def why_not_pinned(cores: WorkerCores, pinning: Pinning) -> str:
    """Return in words why a worker does not pin its processes; "" if it can or should not."""
    if pinning != "off" and cores.limit is not None and cores.limit < cores.allowed:
        return (
            f"pin_cores is {pinning}, but the container's limit of {cores.limit:g} cores is a "
            "share of time, so others may pin to the same cores; give it cores of its own "
            "(docker run --cpuset-cpus)"
        )
    return ""
