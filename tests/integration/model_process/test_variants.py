"""Variants in real model processes: builds, refusals, and no compilation for a job."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from headrace.jobs.job import State
from headrace.jobs.values.encoding import binary_input
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.variants import IMAGES
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

COMPILED = {"handler": "compiled.py:Compiled", "timeout_s": 60}
LOAD_S = 300


def failed(worker: Worker, name: str) -> str:
    def error() -> str:
        state = worker.states()[name]
        return str(state["error"]) if state["state"] == "failed" else ""

    return wait_until(error, "the load has failed", timeout_s=LOAD_S)


def test_a_model_that_cannot_be_optimized_says_so(redis_db: RedisServer, tmp_path: Path) -> None:
    # In a folder of its own: torch would import other handlers as modules of their names.
    shutil.copy(HANDLERS / "compiled.py", tmp_path)
    path = write_models(
        tmp_path,
        none={**COMPILED, "options": {"none": True}, "optimize": {"backend": "torchscript"}},
        gone={"handler": "digits", "optimize": {"precision": "bfloat16", "calibrate": "gone"}},
        trt={**COMPILED, "optimize": {"backend": "tensorrt"}},
        rough={"handler": "digits", "timeout_s": 60,
               "optimize": {"precision": "bfloat16", "calibrate": str(IMAGES), "max_error": 1e-9}},
    )  # fmt: skip
    with (
        celery_worker(redis_db.url, path, tmp_path) as worker,
        Client(redis_db.url, path) as client,
    ):
        assert "its handler has no module to optimize" in failed(worker, "none")
        assert "optimize.calibrate: there is no folder" in failed(worker, "gone")
        assert "tensorrt needs" in failed(worker, "trt")
        worker.wait_ready("rough", timeout_s=LOAD_S)
        assert worker.says("the model runs eager: eager bfloat16 is refused", "rough") == 1
        assert "eager; eager bfloat16 is refused" in worker.states()["rough"]["variant"]
        image = msgspec.json.decode(binary_input((IMAGES / "3_0705.png").read_bytes(), "image/png"))
        (job,) = client.wait(*client.submit("rough", image), timeout_s=60)
        assert job.state is State.SUCCEEDED
        assert client.result(job.id)["digit"] == 3


def test_a_job_never_waits_for_a_compilation(redis_db: RedisServer, tmp_path: Path) -> None:
    wanted = {"backend": "compile"}
    # In a folder of its own: torch would import other handlers as modules of their names.
    shutil.copy(HANDLERS / "compiled.py", tmp_path)
    path = write_models(
        tmp_path, sizes={**COMPILED, "allowed_batch_sizes": [2, 4], "optimize": wanted}
    )
    with (
        # Two threads wait for each other when other tests have the cores: eager would be faster.
        celery_worker(redis_db.url, path, tmp_path, environ={"OMP_NUM_THREADS": "1"}) as worker,
        Client(redis_db.url, path) as client,
    ):
        worker.wait_ready("sizes", timeout_s=LOAD_S)
        found = []
        for size in (1, 2, 3, 4, 6, 1):
            jobs = client.wait(*client.submit("sizes", *range(size)), timeout_s=120)
            assert [job.state for job in jobs] == [State.SUCCEEDED] * size
            found += [client.result(job.id) for job in jobs]
        # One for each size.
        assert {(one["graphs"], one["replaced"]) for one in found} == {(2, True)}
