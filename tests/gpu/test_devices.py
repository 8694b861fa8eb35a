"""One worker per GPU, each on its own, and what its processes take of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.jobs.job import State
from tests.gpu.conftest import LOAD_S, Start
from tests.harness.processes.gpu import cuda_names, gpus, used_mib
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import RunningUp, started, write_models
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client

pytestmark = pytest.mark.gpu

WHERE = {"handler": f"{HANDLERS / 'cuda.py'}:Where", "max_batch_size": 1, "timeout_s": 300}


def test_torch_sees_the_gpus_that_headrace_finds() -> None:
    assert len(gpus()) == len(cuda_names())
    assert all(device.name.startswith("gpu") for device in gpus())


def test_headrace_worker_runs_one_worker_per_gpu(redis_db: RedisServer, tmp_path: Path) -> None:
    devices = gpus()
    path = write_models(tmp_path, {"where": WHERE})
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    up = RunningUp(tmp_path, "worker", "--models", str(path), HEADRACE_REDIS_URL=redis_db.url)
    with started(up), Client(redis_db.url, path) as client:
        up.wait_for(f"{len(devices)} workers on")
        ids = client.submit("where", *[[str(meeting), len(devices)]] * len(devices))
        jobs = client.wait(*ids, timeout_s=LOAD_S)
        assert {job.state for job in jobs} == {State.SUCCEEDED}, jobs[0].error_json
        told = [client.result(job_id) for job_id in ids]
        up.stop()
    assert {one["visible"] for one in told} == {device.cuda_visible_devices for device in devices}
    for one in told:
        assert (one["asked"], one["device"], one["count"]) == ("cuda:0", "cuda:0", 1)
        if one["visible"].startswith("GPU-"):
            assert one["visible"] == f"GPU-{one['uuid'].removeprefix('GPU-')}"


def test_a_model_process_takes_a_context_of_memory_and_gives_it_back(
    on_gpu: Start, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    device = gpus()[0]
    if not device.cuda_visible_devices.startswith("GPU-"):
        pytest.skip("the driver tells the memory of whole GPUs only")
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    before = used_mib(device)
    with on_gpu(where={**WHERE, "replicas": 2}) as (worker, client):
        wait_until(lambda: worker.states()["where"]["ready"] == 2, "both are ready", LOAD_S)
        ids = client.submit("where", *[[str(meeting), 2]] * 2)
        client.wait(*ids, timeout_s=LOAD_S)
        allocated = [client.result(job_id)["allocated_mib"] for job_id in ids]
        taken = (used_mib(device) - before - sum(allocated)) / 2
    record_property("context_mib", taken)
    print(f"{cuda_names()[0]}: {taken:.0f} MiB of context per model process")  # noqa: T201
    assert taken > 0
    # Whoever else uses the GPU may take some meanwhile, but hardly that much.
    wait_until(lambda: used_mib(device) < before + taken, "it is given back", 60)


def test_a_worker_that_is_shown_no_gpu_runs_on_the_cpu(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    path = write_models(tmp_path)
    up = RunningUp(
        tmp_path, "worker", "--models", str(path),
        HEADRACE_REDIS_URL=redis_db.url, CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip
    with started(up):
        up.wait_for("1 workers on")
        assert "cpu0" in up.text()
        up.stop()
