"""The placement of one worker: what it hosts, how many replicas, and room for one more."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from headrace.config.model.catalog import ModelConfig, model_of
from headrace.config.settings import Settings
from headrace.observability.worker_report import DeviceFigures, Figures
from workers.replicas import placement as placements
from workers.replicas.cores import Core, WorkerCores
from workers.replicas.placement import Placement

GIB = 1024**3
CARD = DeviceFigures("2", "GPU-1", memory_used_bytes=60 * GIB, memory_bytes=80 * GIB, gpu=2)
ON_GPU = {"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}
EIGHT = WorkerCores(8, tuple(Core(n // 4, n) for n in range(8)), 16, 8, None, (0, 1))


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with two NUMA nodes of four cores."""
    monkeypatch.setattr(placements, "own_cores", lambda: EIGHT)
    monkeypatch.setattr("workers.replicas.devices.usable_cores", lambda: EIGHT.count)


def auto(name: str, **options: Any) -> ModelConfig:
    return model_of(name, {"handler": "echo", "replicas": "auto", **options}, Path())


def test_auto_is_half_of_the_cores_on_a_cpu_and_one_on_a_gpu() -> None:
    cpu, gpu = Placement([], Settings(), ON_CPU), Placement([], Settings(), ON_GPU, [CARD])
    assert cpu.resolve(auto("m")).replicas == 4
    assert gpu.resolve(auto("m")).replicas == 1
    assert gpu.resolve(auto("m", device="cpu")).replicas == 4
    # The workers share these.
    assert cpu.resolve(auto("m", total_replicas=9)).replicas == 1
    assert cpu.resolve(ModelConfig(name="m", replicas=7)).replicas == 7


def test_threads_and_seats_follow_from_the_models_that_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    models = [auto("a"), ModelConfig(name="b", device="cuda", replicas=50)]
    with caplog.at_level(logging.INFO):
        made = Placement(models, Settings(pin_cores="cores"), ON_CPU)
    assert made.environ["OMP_NUM_THREADS"] == "2"
    assert [made.core_sets.take() for _ in range(5)] == [(0, 1), (2, 3), (4, 5), (6, 7), (0, 1)]
    assert "model processes: 4, threads of each: 2" in caplog.text
    assert "replicas auto: 4, half of the 8 cores" in caplog.text
    assert "pinned: CPUs 0-1; CPUs 2-3; CPUs 4-5; CPUs 6-7" in caplog.text


def test_a_limit_on_time_is_named_and_nothing_is_pinned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limited = WorkerCores(2, EIGHT.cores, 16, 8, 2.0, (0, 1))
    monkeypatch.setattr(placements, "own_cores", lambda: limited)
    with caplog.at_level(logging.WARNING):
        made = Placement([], Settings(pin_cores="numa"), ON_CPU)
    assert not len(made.core_sets)
    assert "--cpuset-cpus" in caplog.text


def test_the_capacity_of_a_worker_on_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "control").touch()
    environ = {**ON_GPU, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    capacity = Placement([], Settings(), environ, [CARD]).capacity
    assert (capacity.device, capacity.gpus, capacity.gpu_memory_mib) == ("cuda", [2], 80 * 1024)
    assert capacity.mps
    assert not Placement([], Settings(), ON_GPU, [CARD]).capacity.mps
    # A worker that was started by hand may use all GPUs.
    assert Placement([], Settings(), {}).capacity.device == ""


@pytest.mark.parametrize(
    ("options", "load_mib", "loading_mib", "why"),
    [
        ({}, 0, 0, ""),  # nothing is known of it
        ({}, 20 * 1024, 0, ""),
        ({}, 20 * 1024 + 1, 0, "it needs 20481 MiB of GPU memory (measured at its last load)"),
        ({"memory_mb": 30_000}, 1, 0, "it needs 30000 MiB of GPU memory (memory_mb), and 20480"),
        ({"memory_mb": 10_000}, 0, 10_481, "of which replicas that load take 10481"),
        ({"memory_mb": 10_000}, 0, 10_480, ""),
    ],
)
def test_room_on_a_gpu(
    options: dict[str, Any], load_mib: float, loading_mib: float, why: str
) -> None:
    made = Placement([], Settings(), ON_GPU, [CARD])
    config = ModelConfig(name="m", **options)
    # The driver has not answered yet.
    assert made.why_no_room(config, "cuda:0", load_mib, loading_mib) == ""
    made.figures = lambda: Figures(devices=[CARD])
    found = made.why_no_room(config, "cuda:0", load_mib, loading_mib)
    assert why in found
    assert bool(found) == bool(why)


def test_what_a_process_takes_on_a_gpu_is_what_the_driver_reports() -> None:
    made = Placement([], Settings(), ON_GPU, [CARD])
    assert made.used_mib("cuda:0", [7]) == 0
    made.figures = lambda: Figures(gpu_processes={7: GIB, 8: GIB})
    assert made.used_mib("cuda:0", [7, 9]) == 1024
