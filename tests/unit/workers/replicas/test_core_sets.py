"""The cores to which model processes are pinned."""

from __future__ import annotations

import pytest

from workers.replicas.cores import (
    NOT_PINNED,
    Core,
    CoreSets,
    Pinning,
    WorkerCores,
    core_sets_of,
    why_not_pinned,
)

TWO_SOCKETS = [Core(n // 4, n) for n in range(8)]
#: Two nodes of three cores.
ODD = [Core(n // 3, n) for n in range(6)]


@pytest.mark.parametrize(
    ("cores", "threads", "pinning", "core_sets"),
    [
        (TWO_SOCKETS, 2, "off", []),
        ([], 1, "cores", []),
        (TWO_SOCKETS, 2, "cores", [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (TWO_SOCKETS, 1, "cores", [(n,) for n in range(8)]),
        (TWO_SOCKETS, 8, "cores", [tuple(range(8))]),  # a lone replica has all cores
        (TWO_SOCKETS, 3, "cores", [(0, 1, 2), (4, 5, 6)]),
        (ODD, 2, "cores", [(0, 1), (3, 4), (2, 5)]),  # only the last one spans two nodes
        (TWO_SOCKETS, 2, "numa", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ([Core(0, 1)], 4, "cores", [(1,)]),
    ],
)
def test_seats_of_cores(
    cores: list[Core], threads: int, pinning: Pinning, core_sets: list[tuple[int, ...]]
) -> None:
    assert core_sets_of(cores, threads, pinning) == core_sets


def test_each_process_takes_the_seat_that_the_fewest_have() -> None:
    core_sets = CoreSets([(0,), (1,)])
    assert [core_sets.take() for _ in range(3)] == [(0,), (1,), (0,)]
    core_sets.free((1,))
    assert core_sets.take() == (1,)
    # A successor takes the core set of the process that it replaces.
    assert core_sets.take((0,)) == (0,)
    assert CoreSets().take() == NOT_PINNED
    CoreSets().free(NOT_PINNED)


def test_a_limit_on_time_forbids_pinning() -> None:
    cores = WorkerCores(2, tuple(TWO_SOCKETS), 16, 8, 2.0, (0, 1))
    assert "limit of 2 cores" in why_not_pinned(cores, "cores")
    assert why_not_pinned(cores, "off") == ""
    whole = WorkerCores(8, tuple(TWO_SOCKETS), 16, 8, None, (0, 1))
    assert why_not_pinned(whole, "numa") == ""
