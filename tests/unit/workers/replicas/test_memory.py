"""The memory that model processes can still allocate."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from workers.replicas.memory import MIB, available_mib, own_mib, total_mib


def group(folder: Path, version: int, limit: str) -> None:
    """A cgroup that has used 300 MiB, of which 100 can be freed."""
    folder.mkdir(parents=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(limit)
    (folder / names[1]).write_text(f"{300 * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {100 * MIB}\n")


@pytest.mark.parametrize(("version", "own"), [(2, "0::/box\n"), (1, "3:memory:/box\n")])
def test_the_limit_of_a_container_counts(tmp_path: Path, version: int, own: str) -> None:
    (tmp_path / "own").write_text(own)
    root = tmp_path / "groups" if version == 2 else tmp_path / "groups" / "memory"
    group(root / "box", version, f"{512 * MIB}\n")
    assert available_mib(tmp_path / "groups", tmp_path / "own") == 312
    assert total_mib(tmp_path / "groups", tmp_path / "own") == 512


def test_without_a_limit_the_host_counts(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/\n")
    group(tmp_path / "groups", 2, "max\n")
    total = psutil.virtual_memory().total / MIB
    assert total_mib(tmp_path / "groups", tmp_path / "own") == total
    assert 0 < available_mib(tmp_path / "groups", tmp_path / "own") <= total


def test_the_memory_of_a_process() -> None:
    assert own_mib([os.getpid()]) > 1
    assert own_mib([2**22 + 1]) == 0
