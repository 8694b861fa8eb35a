"""The batch policy against a fixed window, as the simulated device has it."""

from __future__ import annotations

import pytest

from benchmarks.batching.simulated_policy import (
    ARRIVALS,
    DEVICES,
    LOADS,
    Device,
    Simulation,
    compare,
)
from workers.batching.batcher import Batcher

#: By how much chance alone may put a percentile above the window's; there are few bursts in a run.
CHANCE = {"lone": 1.02, "in bursts": 1.1}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("arrivals", ARRIVALS)
@pytest.mark.parametrize("device", DEVICES, ids=lambda device: f"{device.fixed_s}-{device.item_s}")
def test_the_policy_is_never_behind_a_fixed_window(
    device: Device, arrivals: str, load: float
) -> None:
    found = compare(device, load, arrivals, count=800, seeds=3)
    ours, window = found["policy"], found["fixed window"]
    assert len(ours.took_s) == len(window.took_s) == 3 * 800
    for percent in (50, 99):
        assert ours.percentile_ms(percent) <= CHANCE[arrivals] * window.percentile_ms(percent)


def test_at_low_load_who_comes_alone_waits_for_nobody() -> None:
    device = DEVICES[0]
    found = Simulation(device, Batcher, 0).run([float(second) for second in range(50)])
    assert found.batches == 50
    assert max(found.took_s) < (device.fixed_s + device.item_s) * 1.06


def test_a_full_queue_runs_in_full_batches_under_both() -> None:
    device = DEVICES[0]
    for found in compare(device, 1000, "lone", count=1600, seeds=1).values():
        assert found.batches <= 1600 / device.size + 1
