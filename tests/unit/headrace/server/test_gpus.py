"""Which GPUs a worker is started for, from what the driver and the environment say."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.settings import Settings
from headrace.server.components import worker_children
from headrace.server.gpus import (
    Device,
    list_gpus,
    mps_runs,
    parse_listing,
    visible_gpus,
    worker_devices,
)

LISTING = """\
GPU 0: NVIDIA H200 (UUID: GPU-aaaa)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb)
  MIG 3g.20gb     Device  0: (UUID: MIG-b1)
  MIG 3g.20gb     Device  1: (UUID: MIG-b2)
"""


def test_a_split_gpu_counts_as_its_parts() -> None:
    assert parse_listing(LISTING) == ["GPU-aaaa", "MIG-b1", "MIG-b2"]
    assert parse_listing("No devices found.\n") == []


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (None, ["GPU-aaaa", "GPU-bbbb"]),
        ("", []),
        ("-1", []),
        ("1", ["1"]),
        ("1,0", ["1", "0"]),
        ("0,7,1", ["0"]),
        ("0,-1,1", ["0"]),
        ("GPU-bb", ["GPU-bb"]),
        ("GPU-zz", []),
    ],
)
def test_cuda_visible_devices(wanted: str | None, shown: list[str]) -> None:
    environ = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    assert visible_gpus(environ, ["GPU-aaaa", "GPU-bbbb"]) == shown


def fake_driver(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_one_worker_per_gpu_and_more_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_driver(tmp_path, monkeypatch, f"cat <<'END'\n{LISTING.splitlines()[0]}\nEND")
    assert worker_devices({}, None) == [Device("gpu0", "GPU-aaaa")]
    assert worker_devices({}, 2) == [Device("gpu0", "GPU-aaaa"), Device("gpu0-1", "GPU-aaaa")]
    assert worker_devices({}, 0) == []
    assert worker_devices({"CUDA_VISIBLE_DEVICES": ""}, None) == [Device("cpu0", "")]
    assert worker_devices({"NVIDIA_VISIBLE_DEVICES": "none"}, None) == [Device("cpu0", "")]


def test_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list_gpus() == []
    # An index alone makes no GPU.
    assert worker_devices({"CUDA_VISIBLE_DEVICES": "0"}, 2) == [
        Device("cpu0", ""),
        Device("cpu1", ""),
    ]
    fake_driver(tmp_path, monkeypatch, "echo 'NVIDIA-SMI has failed' >&2; exit 9")
    assert list_gpus() == []


def test_a_worker_for_each_part_of_a_split_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "GPU 0: NVIDIA A100 (UUID: GPU-aaaa)",
        "  MIG 3g.20gb     Device  0: (UUID: MIG-1111)",
        "  MIG 3g.20gb     Device  1: (UUID: MIG-2222)",
        "GPU 1: NVIDIA A100 (UUID: GPU-bbbb)",
    ]
    fake_driver(tmp_path, monkeypatch, "cat <<'END'\n" + "\n".join(lines) + "\nEND")
    assert worker_devices({}, None) == [
        Device("gpu0", "MIG-1111"),
        Device("gpu1", "MIG-2222"),
        Device("gpu2", "GPU-bbbb"),
    ]


def test_the_workers_of_a_host_share_its_cores() -> None:
    devices = [Device("cpu0", ""), Device("cpu1", "")]
    environ = {"HEADRACE_REDIS_URL": "redis://nowhere"}
    children = worker_children(devices, Settings(), environ, lambda _: None)
    shares = [child.environment()["HEADRACE_WORKER_SHARE"] for child in children]
    assert shares == ["0/2", "1/2"]


def test_mps_is_found_by_the_pipe_of_its_daemon(tmp_path: Path) -> None:
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert not mps_runs(environ)
    (tmp_path / "control").touch()
    assert mps_runs(environ)
