"""What a meter samples: processes, and devices behind a fake of NVIDIA's library."""

from __future__ import annotations

import os
import time

import pytest

from extensions.tuning.bench.measurement import Usage
from extensions.tuning.bench.usage import Meter
from tests.harness.fakes.nvml import LOST, TWO, Gpu, installed


def metered() -> dict[str, Usage]:
    """What this process and the devices used while a meter ran."""
    began = time.monotonic()
    meter = Meter({"server": [os.getpid()]})
    meter.start()
    meter.stop()
    return meter.usage(began, time.monotonic())


def test_devices_have_their_memory_and_how_busy_they_are() -> None:
    with installed(*TWO):
        found = metered()
    assert found.keys() == {"server", "device"}
    device = found["device"]
    assert (device.memory_mb, device.memory_total_mb) == (61 * 1024, 160 * 1024)
    assert device.busy == pytest.approx(0.375)
    assert (found["server"].memory_total_mb, found["server"].busy) == (0, 0)
    assert found["server"].memory_mb > 0


def test_a_part_of_a_device_is_not_known_to_be_busy() -> None:
    with installed(Gpu("MIG-1", busy=None)):
        assert metered()["device"].busy == 0


def test_without_a_device_there_is_no_such_part() -> None:
    with installed():
        assert metered().keys() == {"server"}


def test_a_driver_in_trouble_is_no_device() -> None:
    with installed(*TWO) as library:
        library.error = LOST
        assert metered().keys() == {"server"}


def test_a_driver_that_is_lost_leaves_the_figures_before() -> None:
    began = time.monotonic()
    with installed(*TWO) as library:
        meter = Meter({})
        meter.start()
        library.error = LOST
        meter.stop()
        found = meter.usage(began, time.monotonic())
    # The first sample may come before or after the loss.
    assert found.get("device", Usage(cpu_s=0, memory_mb=61 * 1024)).memory_mb == 61 * 1024
