"""The benchmark of v2 still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.common.systems import Headrace
from benchmarks.inference_protocols.native_route import ENVIRON, MODEL, measure


def test_a_pair_of_each_size_is_measured() -> None:
    with Headrace(events=False, models={"identity": MODEL}, environ=ENVIRON) as running:
        for values in (16, 5000):
            ((native, ours),) = measure(running, values, 0.2, 1)
            assert min(native.rate, ours.rate) > 0
