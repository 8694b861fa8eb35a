"""The cores of machines with hyper-threads and of containers with a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.replicas.cores import (
    ENV_SHARE,
    Core,
    WorkerCores,
    allowed_cpus,
    read_cpus,
    usable_cores,
    worker_cores,
    write_cpus,
)


def machine(folder: Path, *cores: str) -> Path:
    """A kernel's folder of CPUs; each core has the list of its hyper-threads."""
    for core in cores:
        for cpu in core.split(","):
            topology = folder / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(f"{core}\n")
    return folder


def count(cpus: set[int], sys: Path, cgroups: Path, own: Path) -> int:
    return worker_cores(cpus, {}, sys, sys, cgroups, own).count


def two_sockets(folder: Path, share: str = "", limit: str = "max 100000") -> WorkerCores:
    """Two sockets of four cores, with hyper-threads: CPU n + 8 is the second one of core n."""
    machine(folder / "cpus", *(f"{n},{n + 8}" for n in range(8)))
    write(folder / "nodes" / "node0", cpulist="0-3,8-11\n")
    write(folder / "nodes" / "node1", cpulist="4-7,12-15\n")
    write(folder / "nodes", online="0-1")
    write(folder / "groups", cpu__max=limit)
    write(folder, own="0::/\n")
    environ = {ENV_SHARE: share}
    return worker_cores(
        set(range(16)), environ, folder / "cpus", folder / "nodes", folder / "groups",
        folder / "own",
    )  # fmt: skip


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize(
    ("cpus", "cores"), [({0, 1, 2, 3}, 2), ({0, 2}, 1), ({0, 1}, 2), ({3}, 1), ({0, 7}, 2)]
)
def test_hyper_threads_of_one_core_count_once(tmp_path: Path, cpus: set[int], cores: int) -> None:
    cpu_folder = machine(tmp_path / "cpus", "0,2", "1,3")
    assert count(cpus, cpu_folder, tmp_path, tmp_path / "none") == cores


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("5000 100000", 1), ("x", 8)],
)
def test_a_container_has_the_cores_of_its_limit(tmp_path: Path, limit: str, cores: int) -> None:
    own = tmp_path / "own"
    own.write_text("0::/system.slice/worker\n")
    write(tmp_path / "groups" / "system.slice", cpu__max=limit)
    write(tmp_path / "groups" / "system.slice" / "worker", cpu__max="max 100000")
    assert count(set(range(8)), tmp_path, tmp_path / "groups", own) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3)])
def test_a_container_of_the_first_version_has_the_cores_of_its_limit(
    tmp_path: Path, quota: str, cores: int
) -> None:
    own = tmp_path / "own"
    own.write_text("5:memory:/docker/a\n4:cpuacct,cpu:/docker/a\n")
    # It sees its own group as the root.
    root = tmp_path / "groups" / "cpu"
    write(root, cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert count(set(range(8)), tmp_path, tmp_path / "groups", own) == cores


def test_this_machine_has_cores() -> None:
    assert 1 <= usable_cores() <= len(allowed_cpus())


def test_cores_are_known_by_their_node_and_first_hyper_thread(tmp_path: Path) -> None:
    found = two_sockets(tmp_path)
    assert found.cores == tuple(Core(n // 4, n) for n in range(8))
    assert str(found) == "8 physical cores in 16 logical CPUs, hyper-threads left out"


@pytest.mark.parametrize(
    ("share", "cpus"),
    [
        ("0/2", [0, 1, 2, 3]),
        ("1/2", [4, 5, 6, 7]),
        ("1/3", [2, 3, 4]),
        ("9/10", [7]),
        ("2/2", list(range(8))),
        ("x", list(range(8))),
    ],
)
def test_workers_of_one_host_share_its_cores(tmp_path: Path, share: str, cpus: list[int]) -> None:
    found = two_sockets(tmp_path, share)
    assert [core.cpu for core in found.cores] == cpus
    assert found.count == len(cpus)


def test_the_words_name_the_limit_and_the_share(tmp_path: Path) -> None:
    found = two_sockets(tmp_path, "0/2", "600000 100000")
    assert found.count == 3
    assert str(found) == (
        "8 physical cores in 16 logical CPUs, hyper-threads left out, the container's limit is 6 "
        "cores, worker 1 of 2 on this host, cores of this worker: 3"
    )


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8", [0, 1, 2, 3, 8]), ("5", [5]), ("", []), ("0,2", [0, 2])]
)
def test_lists_of_the_kernel(text: str, cpus: list[int]) -> None:
    assert read_cpus(f"{text}\n") == cpus
    assert write_cpus(cpus) == text
