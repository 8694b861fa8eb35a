"""Variants of a module on the GPU: half, compile with CUDA graphs, and TensorRT where it is."""

from __future__ import annotations

import importlib.util
from typing import Any

import msgspec
import pytest

from headrace.config.model.optimize import Optimize
from headrace.jobs.job import State
from headrace.jobs.values.encoding import binary_input
from tests.gpu.conftest import LOAD_S, Start
from tests.harness.variants import IMAGES

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]

NEEDS_TENSORRT = pytest.mark.skipif(
    importlib.util.find_spec("torch_tensorrt") is None, reason="torch-tensorrt is not installed"
)


@pytest.mark.parametrize(
    "wanted",
    [
        {"precision": "half"},
        {"backend": "torchscript"},
        {"backend": "aot", "precision": "half"},
        {"backend": "compile", "mode": "reduce-overhead"},
        pytest.param({"backend": "tensorrt", "precision": "half"}, marks=NEEDS_TENSORRT),
    ],
    ids=lambda wanted: Optimize(**wanted).name,
)
def test_a_variant_gives_the_answers_of_eager(wanted: dict[str, Any], on_gpu: Start) -> None:
    model = {
        "handler": "digits", "allowed_batch_sizes": [1, 8], "timeout_s": 300,
        "load_timeout_s": LOAD_S,
    }  # fmt: skip
    optimize = {**wanted, "calibrate": str(IMAGES), "max_error": 0.1}
    inputs = [
        msgspec.json.decode(binary_input(path.read_bytes(), "image/png"))
        for path in sorted(IMAGES.iterdir())
    ]
    with on_gpu(eager=model, fast={**model, "optimize": optimize}) as (worker, client):
        # A small module may be fastest as it is. A variant must never be wrong.
        assert worker.says("its outputs differ", "fast") == 0
        assert worker.says("it cannot", "fast") == 0
        found = []
        for name in ("eager", "fast"):
            jobs = client.wait(*client.submit(name, *inputs), timeout_s=LOAD_S)
            assert [job.state for job in jobs] == [State.SUCCEEDED] * len(inputs)
            found.append([client.result(job.id)["digit"] for job in jobs])
    assert found[0] == found[1]
