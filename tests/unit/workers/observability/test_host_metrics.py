"""A worker measures its host and its processes beside its loop."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import msgspec
import psutil
import pytest

from headrace.observability.worker_report import DeviceFigures, Figures
from tests.harness.wait import wait_until
from workers.observability import host_metrics
from workers.observability.host_metrics import NOTHING, HostMetrics

GPU = DeviceFigures(id="0", busy_ratio=0.5)
#: A pid that no process has: they are 22 bits at the most.
NOBODY = 2**22 + 1


def measured(raw: bytes) -> Figures:
    return msgspec.json.decode(raw, type=Figures)


def test_what_is_measured(tmp_path: Path) -> None:
    own = HostMetrics(lambda: [GPU], lambda: {"m": [os.getpid(), NOBODY], "none": []}, tmp_path)
    figures = own.measure()
    host = figures.host
    assert host is not None
    assert host.cpus == os.cpu_count()
    assert 0 <= host.cpu_ratio <= 1
    assert host.memory_bytes == psutil.virtual_memory().total
    assert 0 < host.memory_available_bytes < host.memory_bytes
    assert 0 < host.disk_available_bytes <= host.disk_bytes
    assert figures.devices == [GPU]
    assert figures.models["none"] == 0
    assert figures.models["m"] > 10 * 2**20


def test_of_a_folder_that_is_not_there_the_space_is_told_where_it_would_be(tmp_path: Path) -> None:
    there, nowhere = (
        HostMetrics(list, dict, folder).measure().host
        for folder in (tmp_path, tmp_path / "no" / "where")
    )
    assert there is not None
    assert nowhere is not None
    assert nowhere.disk_bytes == there.disk_bytes > 0


def test_it_measures_until_it_is_stopped_and_survives_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_metrics, "SAMPLE_S", 0.001)
    asked = threading.Semaphore(0)
    broken = True

    def devices() -> list[DeviceFigures]:
        asked.release()
        if broken:
            raise RuntimeError("the driver is being replaced")
        return [GPU]

    own = HostMetrics(devices, dict, tmp_path)
    assert own.latest() == NOTHING
    with caplog.at_level(logging.WARNING):
        own.start()
        for _ in range(3):
            assert asked.acquire(timeout=30)
    try:
        assert own.latest() == NOTHING
        assert "cannot be measured" in caplog.text
        broken = False
        wait_until(lambda: measured(own.latest()).devices == [GPU], "it measures again", 30)
    finally:
        own.stop()


def test_what_is_old_is_told_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, hang = threading.Event(), threading.Event()

    def devices() -> list[DeviceFigures]:
        # As a call into a driver in trouble, which comes back when it pleases.
        if first.is_set():
            hang.wait()
        return [GPU]

    monkeypatch.setattr(host_metrics, "SAMPLE_S", 0.001)
    own = HostMetrics(devices, dict, tmp_path)
    own.start()
    try:
        wait_until(lambda: own.latest() != NOTHING, "it has measured", 30)
        first.set()
        monkeypatch.setattr(host_metrics, "STALE_S", 0.0)
        assert own.latest() == NOTHING
    finally:
        own.stop()
        hang.set()
