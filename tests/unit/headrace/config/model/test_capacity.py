"""What a worker can host and what a model needs, and the words for what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.model.capacity import Capacity, Host, Needs, misfits, needs_of, why_no_worker
from headrace.config.model.catalog import ModelConfig

CPU = Capacity("cpu", memory_mib=4000)
GPU = Capacity("cuda", gpus=[1], memory_mib=64_000, gpu_memory_mib=24_000)
#: A worker that knows nothing of itself.
UNKNOWN = Capacity()


@pytest.mark.parametrize(
    ("needs", "capacity", "why"),
    [
        ({}, CPU, []),
        ({}, UNKNOWN, []),
        ({"device": "cuda"}, GPU, []),
        ({"device": "cuda"}, UNKNOWN, []),
        ({"device": "cuda"}, CPU, ["has no GPU"]),
        ({"device": "cuda:0"}, CPU, ["has no GPU"]),
        ({"device": "cpu"}, GPU, []),
        ({"device_ids": [0, 1]}, GPU, []),
        ({"device_ids": [0, 2]}, GPU, ["has GPU 1, not one of device_ids 0, 2"]),
        ({"device_ids": [0]}, CPU, []),
        ({"device_ids": [0], "device": "cpu"}, GPU, []),
        (
            {"device_ids": [0]},
            Capacity("cuda"),
            ["has a GPU without a number, not one of device_ids 0"],
        ),
        ({"memory_mb": 4000}, CPU, []),
        ({"memory_mb": 4001}, CPU, ["has 4000 MiB of memory, and a replica needs 4001"]),
        ({"memory_mb": 30_000}, GPU, ["has 24000 MiB of GPU memory, and a replica needs 30000"]),
        ({"memory_mb": 30_000, "device": "cpu"}, GPU, []),
        ({"memory_mb": 30_000}, UNKNOWN, []),
    ],
)
def test_a_model_fits_a_worker_or_the_words_say_why_not(
    needs: dict[str, Any], capacity: Capacity, why: list[str]
) -> None:
    assert misfits(Needs(**needs), [], capacity) == why


def test_the_words_name_each_worker_and_what_it_lacks() -> None:
    workers = {
        "a@one": Host(["gpu=a100", "zone=b"], GPU),
        "b@two": Host(["zone=b"], CPU),
    }
    assert why_no_worker(Needs(), workers) == ""
    assert why_no_worker(Needs(labels=["gpu=a100"]), workers) == ""
    assert why_no_worker(Needs(labels=["gpu=h100", "zone=b"]), workers) == (
        "no worker fits: a@one lacks gpu=h100, b@two lacks gpu=h100"
    )
    assert why_no_worker(Needs(device="cuda", labels=["zone=c"]), workers) == (
        "no worker fits: a@one lacks zone=c, b@two has no GPU, lacks zone=c"
    )
    assert why_no_worker(Needs(), {}) == "no worker runs"


def test_newer_options_count_before_the_configuration_if_they_are_valid() -> None:
    config = ModelConfig(name="m", labels=["a=b"], memory_mb=5)
    assert needs_of(config) == Needs(labels=["a=b"], memory_mb=5)
    newer = {"labels": ["c=d"], "memory_mb": None, "weight": 2.0}
    assert needs_of(config, newer) == Needs(labels=["c=d"])
    assert needs_of(config, {"labels": 3}) == needs_of(config)
