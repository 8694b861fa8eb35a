"""The batch policy against a fixed window and full knowledge, as the simulated device has it."""

from __future__ import annotations

import re

import pytest

from benchmarks.batching.simulated_policy import (
    ARRIVALS,
    DEVICES,
    LOADS,
    LOOPS,
    best_rate,
    compare,
    least_mean_ms,
    loop,
)
from benchmarks.batching.simulation import Device, Simulation
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


#: Some of the seconds are needed to learn.
SECONDS = 5
#: The rates with full knowledge in so many seconds, which take several times as long to find as
#: that of the policy. Those in which the policy has nothing to decide are left out: batches are
#: always full.
BEST = {
    "20 ms, 1 clients": 46.5,
    "20 ms, 2 clients": 92.2,
    "20 ms, 4 clients": 182.5,
    "20 ms, 8 clients": 357.8,
    "20 ms, 10 clients": 362.6,
    "20 ms, 12 clients": 366.1,
    "7 ms, 1 clients": 117.7,
    "7 ms, 2 clients": 230.9,
    "7 ms, 4 clients": 449.6,
    "7 ms, 8 clients": 857.5,
    "7 ms, 10 clients": 888.6,
    "7 ms, 12 clients": 909.1,
    "20 + 1 n ms, 10 clients": 307.4,
    "20 + 1 n ms, 10 clients, sizes 4, 8, 16": 259.9,
    "20 ms, 10 clients, 3 ms of thought": 312.8,
    "20 ms, 10 clients, a trip of 3 ms": 335.3,
    "7 ms, 8 clients, a trip of 3 ms": 718.5,
    "7 ms, 10 clients, a trip of 5 ms": 714.1,
    "7 ms, 12 clients, a trip of 5 ms": 856.7,
    "20 ms, 10 clients, 2 keys": 296.0,
    "20 ms, 8 clients, 2 replicas": 359.5,
    "20 ms, 20 clients, 2 replicas": 731.8,
    "20 + 1 n ms, 4 clients, offline jobs": 82.5,
    "20 + 1 n ms, 4 clients and arrivals of 5 %": 148.5,
    "20 + 1 n ms, 10 clients and arrivals of 5 %": 277.0,
}
#: The least mean time with full knowledge, by the load.
LEAST_MS = {0.5: 38.61, 0.95: 58.18}


#: Between others that are tested: of a few clients more or less.
BETWEEN = re.compile(r"^(20|7) ms, (2|8|12) clients$")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if BETWEEN.match(name) else []) for name in BEST],
)
def test_a_closed_loop_runs_almost_as_fast_as_with_full_knowledge(name: str) -> None:
    case = LOOPS[name]
    assert loop(case, Batcher, SECONDS).rate >= 0.95 * BEST[name]


@pytest.mark.slow
def test_what_full_knowledge_reaches_is_as_recorded() -> None:
    assert BEST.keys() == {
        name for name in LOOPS if not re.search(r"(16|32|64) clients|^10 n ms, [1248]", name)
    }
    found = {name: best_rate(LOOPS[name], SECONDS) for name in BEST}
    assert found == pytest.approx(BEST, abs=0.1)
    least = {load: least_mean_ms(DEVICES[0], load, "lone", count=800, seeds=2) for load in LEAST_MS}
    assert least == pytest.approx(LEAST_MS, abs=0.01)


@pytest.mark.parametrize("load", LEAST_MS)
def test_arrivals_at_random_run_almost_as_fast_as_with_full_knowledge(load: float) -> None:
    device = DEVICES[0]
    ours = compare(device, load, "lone", count=800, seeds=2)["policy"]
    assert LEAST_MS[load] >= 0.95 * ours.mean_ms


def test_a_device_without_a_fixed_time_is_never_left_idle_in_a_closed_loop() -> None:
    case = LOOPS["10 n ms, 10 clients"]
    ours = loop(case, Batcher, SECONDS)
    assert ours.rate == pytest.approx(100, rel=0.03)
    assert ours.percentile_ms(99) < 110


def test_a_lone_client_is_as_fast_as_the_device() -> None:
    ours = loop(LOOPS["20 ms, 1 clients"], Batcher, SECONDS)
    assert ours.percentile_ms(99) < 21.5
