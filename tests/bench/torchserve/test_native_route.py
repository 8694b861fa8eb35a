"""The benchmark of TorchServe's URLs still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.common.pairs import CONNECTIONS
from benchmarks.torchserve.native_route import MODELS, measure, stack


def test_a_pair_of_each_model_is_measured() -> None:
    with stack() as running:
        for model in MODELS:
            (pair,) = measure(running, model, 0.2, 1)
            assert min(side.load.requests for side in pair) >= CONNECTIONS
