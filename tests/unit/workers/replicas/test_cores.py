"""The cores of machines with hyper-threads and of containers with a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.replicas.cores import allowed_cpus, count_cores, usable_cores


def machine(folder: Path, *cores: str) -> Path:
    """A kernel's folder of CPUs; each core has the list of its hyper-threads."""
    for core in cores:
        for cpu in core.split(","):
            topology = folder / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(f"{core}\n")
    return folder


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize(
    ("cpus", "cores"), [({0, 1, 2, 3}, 2), ({0, 2}, 1), ({0, 1}, 2), ({3}, 1), ({0, 7}, 2)]
)
def test_hyper_threads_of_one_core_count_once(tmp_path: Path, cpus: set[int], cores: int) -> None:
    cpu_folder = machine(tmp_path / "cpus", "0,2", "1,3")
    assert count_cores(cpus, cpu_folder, tmp_path, tmp_path / "none") == cores


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("5000 100000", 1), ("x", 8)],
)
def test_a_container_has_the_cores_of_its_limit(tmp_path: Path, limit: str, cores: int) -> None:
    own = tmp_path / "own"
    own.write_text("0::/system.slice/worker\n")
    write(tmp_path / "groups" / "system.slice", cpu__max=limit)
    write(tmp_path / "groups" / "system.slice" / "worker", cpu__max="max 100000")
    assert count_cores(set(range(8)), tmp_path, tmp_path / "groups", own) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3)])
def test_a_container_of_the_first_version_has_the_cores_of_its_limit(
    tmp_path: Path, quota: str, cores: int
) -> None:
    own = tmp_path / "own"
    own.write_text("5:memory:/docker/a\n4:cpuacct,cpu:/docker/a\n")
    # It sees its own group as the root.
    root = tmp_path / "groups" / "cpu"
    write(root, cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert count_cores(set(range(8)), tmp_path, tmp_path / "groups", own) == cores


def test_this_machine_has_cores() -> None:
    assert 1 <= usable_cores() <= len(allowed_cpus())
