"""The language model that comes with Headrace, on the GPU."""

from __future__ import annotations

import importlib.util
import os
import signal
from functools import partial
from typing import Any

import pytest

from headrace.jobs.job import State
from headrace.redis import keys
from tests.gpu.conftest import LOAD_S, Start
from tests.harness.wait import wait_until

NAMES = ("zip", "json.loads", "random.choice", "the with statement", "the yield statement")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
    ),
]


def model(device: str, engine: str) -> dict[str, Any]:
    return {
        "handler": "language_model", "device": device, "options": {"engine": engine},
        "max_batch_size": 4, "timeout_s": 300, "load_timeout_s": LOAD_S,
    }  # fmt: skip


def question(name: str, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"What is {name}?"}
    return {"messages": [message], "max_tokens": 100, "temperature": 0, **more}


def test_both_engines_give_the_answers_of_the_cpu(on_gpu: Start) -> None:
    models = {
        "cpu": model("cpu", "continuous"), "continuous": model("auto", "continuous"),
        "generate": model("auto", "generate"),
    }  # fmt: skip
    values = [question(name) for name in NAMES * 3]
    with on_gpu(**models) as (worker, client):
        assert worker.states()["continuous"]["device"] == "cuda:0"
        found = {}
        for name in models:
            jobs = client.wait(*client.submit(name, *values), timeout_s=LOAD_S)
            assert {job.state for job in jobs} == {State.SUCCEEDED}, jobs[0].error_json
            found[name] = [client.result(job.id) for job in jobs]
    assert found["continuous"] == found["generate"] == found["cpu"]


def test_a_killed_process_does_not_change_an_answer(on_gpu: Start) -> None:
    asked = question("zip", ignore_eos=True, max_tokens=900)
    with on_gpu(m=model("auto", "continuous")) as (worker, client):
        (whole,) = client.wait(*client.submit("m", asked), timeout_s=LOAD_S)
        expected = client.result(whole.id)
        for _ in range(10):
            (job_id,) = client.submit("m", asked)
            wait_until(partial(client.redis.exists, keys.pieces(job_id)), "it writes")
            for pid in worker.model_pids():
                os.kill(pid, signal.SIGKILL)
            (job,) = client.wait(job_id, timeout_s=LOAD_S)
            assert client.result(job_id) == expected
            if job.attempts == 2:
                return  # else it had ended before the kill
            worker.wait_ready("m", timeout_s=LOAD_S)
    raise AssertionError("each of ten jobs ended before its process was killed")
