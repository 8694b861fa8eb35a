"""GPUs as a worker tells of them, by NVIDIA's own bindings over a library of our own."""

from __future__ import annotations

import logging

import pytest

from headrace.observability.worker_report import DeviceFigures
from tests.harness.fakes.nvml import GIB, LOST, TWO, Gpu, install, installed
from workers.observability.host_metrics import AGAIN_S, GpuMetrics

FIRST = DeviceFigures(
    id="0", uuid=TWO[0].uuid, name="NVIDIA Test 80GB", busy_ratio=0.75,
    memory_used_bytes=60 * GIB, memory_bytes=80 * GIB, temperature_celsius=61, power_watts=415.25,
    gpu=0,
)  # fmt: skip


@pytest.mark.parametrize("named", ["0", TWO[0].uuid])
def test_a_gpu_is_found_by_its_number_and_by_its_uuid(named: str) -> None:
    with installed(*TWO):
        assert GpuMetrics({"CUDA_VISIBLE_DEVICES": named}).read() == [FIRST]


def test_only_what_the_worker_may_use_is_read() -> None:
    with installed(*TWO):
        (second,) = GpuMetrics({"CUDA_VISIBLE_DEVICES": "1"}).read()
        both = GpuMetrics({"CUDA_VISIBLE_DEVICES": f"1, {TWO[0].uuid}"}).read()
    assert (second.id, second.busy_ratio, second.temperature_celsius) == ("1", 0, 33)
    assert [device.id for device in both] == ["1", "0"]


@pytest.mark.parametrize("visible", [None, "", "-1", "none", "NoDevFiles"])
def test_without_gpus_the_driver_is_not_asked(visible: str | None) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    with installed(*TWO) as library:
        assert GpuMetrics(environ).read() == []
        assert not library.calls


def test_what_a_driver_does_not_tell_is_left_out() -> None:
    part = Gpu(
        "MIG-33333333-0000-0000-0000-000000000000",
        busy=None, celsius=None, milliwatts=None, parent=1,
    )  # fmt: skip
    with installed(TWO[0], TWO[1], part):
        (device,) = GpuMetrics({"CUDA_VISIBLE_DEVICES": part.uuid}).read()
    assert device.id == device.uuid == part.uuid
    assert device.gpu == 1
    assert (device.busy_ratio, device.temperature_celsius, device.power_watts) == (None, None, None)
    assert device.memory_used_bytes == 60 * GIB


def test_a_lost_gpu_is_asked_for_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr("workers.observability.host_metrics.time.monotonic", lambda: now)
    with installed(*TWO) as library:
        reader = GpuMetrics({"CUDA_VISIBLE_DEVICES": "0"})
        assert reader.read() == [FIRST]
        library.error = LOST
        with caplog.at_level(logging.WARNING):
            assert reader.read() == []
        assert "GPU is lost" in caplog.text
        library.error, library.calls = 0, {}
        assert reader.read() == []
        assert not library.calls
        now += AGAIN_S
        assert reader.read() == [FIRST]


def test_a_gpu_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    with installed(TWO[0]), caplog.at_level(logging.WARNING):
        assert GpuMetrics({"CUDA_VISIBLE_DEVICES": "7"}).read() == []
    assert "Not Found" in caplog.text


def test_a_host_without_the_library(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with installed():
        library = install()
        monkeypatch.setattr(library, "error", 12)
        with caplog.at_level(logging.WARNING):
            assert GpuMetrics({"CUDA_VISIBLE_DEVICES": "0"}).read() == []
    assert "NVML Shared Library Not Found" in caplog.text


def test_the_memory_of_each_process() -> None:
    busy = Gpu("GPU-44444444-0000-0000-0000-000000000000", processes=((7, GIB), (8, 2 * GIB)))
    with installed(busy) as library:
        reader = GpuMetrics({"CUDA_VISIBLE_DEVICES": "0"})
        assert reader.processes() == {}
        reader.read()
        assert reader.processes() == {7: GIB, 8: 2 * GIB}
        library.error = LOST
        assert reader.processes() == {}
