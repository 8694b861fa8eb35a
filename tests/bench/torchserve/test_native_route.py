"""The benchmark of TorchServe's URLs still runs; what it measures is asserted nowhere."""

from __future__ import annotations

from benchmarks.torchserve.native_route import CONNECTIONS, MODELS, measure, stack


def test_a_pair_of_each_model_is_measured() -> None:
    with stack() as running:
        for model in MODELS:
            (pair,) = measure(running, model, 0.2, 1)
            assert min(pair.native.requests, pair.ours.requests) >= CONNECTIONS
            assert pair.ratio > 0
