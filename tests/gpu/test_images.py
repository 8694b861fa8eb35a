"""Copies beside the computing, and `image_classifier` on the GPU against itself on the CPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from benchmarks.gpu.workloads import photographs
from headrace.jobs.job import State
from tests.gpu.conftest import LOAD_S, Start
from tests.harness.workers.worker import HANDLERS

pytestmark = pytest.mark.gpu

NEEDS_TORCHVISION = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed"
)


def test_copies_are_pinned_and_run_beside_what_the_device_computes(on_gpu: Start) -> None:
    copies = {"handler": f"{HANDLERS / 'cuda.py'}:Copies", "timeout_s": 300}
    with on_gpu(copies=copies) as (_, client):
        (job,) = client.wait(*client.submit("copies", 1), timeout_s=LOAD_S)
        assert job.state is State.SUCCEEDED, job.error_json
        told = client.result(job.id)
    assert told["pinned"]
    assert told["copied"]
    assert told["fetched"]
    assert told["answers"] == told["again"] == list(range(8))


def test_the_gpu_gives_the_answers_of_the_cpu(on_gpu: Start) -> None:
    def model(device: str, precision: str) -> dict[str, Any]:
        options = {"precision": precision, "model": "handlers.resnet:resnet50", "top_k": 3}
        return {
            "handler": "image_classifier", "device": device, "options": options,
            "max_batch_size": 4, "timeout_s": 300, "load_timeout_s": LOAD_S,
        }  # fmt: skip

    models = {
        "cpu": model("cpu", "float"), "gpu": model("auto", "float"),
        "half": model("auto", "half"), "bfloat16": model("auto", "bfloat16"),
    }  # fmt: skip
    images = [image.as_input() for image in photographs(6, 320, 240)]
    with on_gpu(**models) as (worker, client):
        devices = {name: worker.states()[name]["device"] for name in models}
        assert devices == {"cpu": "cpu", "gpu": "cuda:0", "half": "cuda:0", "bfloat16": "cuda:0"}
        found: dict[str, list[float]] = {}
        for name in models:
            jobs = client.wait(*client.submit(name, *images), timeout_s=LOAD_S)
            assert {job.state for job in jobs} == {State.SUCCEEDED}, jobs[0].error_json
            found[name] = [
                one["probability"] for job in jobs for one in client.result(job.id)["classes"]
            ]
    assert found["gpu"] == pytest.approx(found["cpu"], abs=0.01)
    assert found["half"] == pytest.approx(found["cpu"], abs=0.05)
    assert found["bfloat16"] == pytest.approx(found["cpu"], abs=0.15)


@NEEDS_TORCHVISION
def test_jpegs_are_decoded_on_the_gpu(on_gpu: Start) -> None:
    model = {"handler": "image_classifier", "max_batch_size": 4, "timeout_s": 300}
    models = {
        "cpu": {**model, "options": {"top_k": 50}},
        "gpu": {**model, "options": {"top_k": 50, "decode": "gpu"}},
    }
    images = [image.as_input() for image in photographs(6, 320, 240)]
    with on_gpu(**models) as (_, client):
        found = []
        for name in models:
            jobs = client.wait(*client.submit(name, *images), timeout_s=LOAD_S)
            assert {job.state for job in jobs} == {State.SUCCEEDED}, jobs[0].error_json
            found.append([
                {one["index"]: one["probability"] for one in client.result(job.id)["classes"]}
                for job in jobs
            ])  # fmt: skip
    for on_cpu, decoded in zip(*found, strict=True):
        both = on_cpu.keys() & decoded.keys()
        assert len(both) >= 25
        for index in both:
            assert decoded[index] == pytest.approx(on_cpu[index], rel=0.2, abs=1e-4)
