"""What goes wrong on a GPU, provoked for real: no memory, and an assert on the device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.jobs.job import State
from tests.gpu.conftest import LOAD_S, Start
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS
from workers.batching.estimates import PATIENCE_MIN

pytestmark = pytest.mark.gpu

HANDLER = HANDLERS / "cuda.py"


def test_out_of_memory_halves_the_batch_is_remembered_and_grown_out_of(on_gpu: Start) -> None:
    hungry = {
        "handler": f"{HANDLER}:Hungry", "options": {"fit": 5}, "max_batch_size": 8,
        "max_batch_delay_ms": 1000, "timeout_s": 300,
    }  # fmt: skip
    with on_gpu(hungry=hungry) as (worker, client):
        jobs = client.wait(*client.submit("hungry", *range(8)), timeout_s=LOAD_S)
        assert {job.state for job in jobs} == {State.SUCCEEDED}, jobs[0].error_json
        assert [client.result(job.id) for job in jobs] == list(range(8))
        wait_until(lambda: worker.states()["hungry"]["fits"] == 4, "it is remembered")
        assert "out of memory with 8 inputs" in worker.log
        # Twice the patience since it failed once; the next size has room.
        full = [n % 256 for n in range(4 * (2 * PATIENCE_MIN + 2))]
        jobs = client.wait(*client.submit("hungry", *full), timeout_s=LOAD_S)
        assert {job.state for job in jobs} == {State.SUCCEEDED}
        wait_until(lambda: worker.states()["hungry"]["fits"] == 5, "it has grown")
        assert worker.log.count("out of memory with") == 1
        assert worker.states()["hungry"]["lost"] == 0


@pytest.mark.parametrize("kind", ["Lookup", "LookupAhead"])
def test_an_assert_on_the_device_costs_its_process_and_its_item(
    on_gpu: Start, tmp_path: Path, kind: str
) -> None:
    log = tmp_path / "pids.log"
    lookup = {
        "handler": f"{HANDLER}:{kind}", "options": {"log": str(log)}, "max_batch_size": 4,
        "max_batch_delay_ms": 1000, "timeout_s": 300,
    }  # fmt: skip
    with on_gpu(lookup=lookup) as (worker, client):
        (alone,) = client.wait(*client.submit("lookup", 1000), timeout_s=LOAD_S)
        assert (alone.state, alone.attempts) == (State.FAILED, 1)
        assert "CUDA" in json.loads(alone.error_json)["message"]
        wait_until(lambda: worker.states()["lookup"]["lost"] == 1, "one process is lost")
        worker.wait_ready("lookup", timeout_s=LOAD_S)
        jobs = client.wait(*client.submit("lookup", 3, 1000, 5, 7), timeout_s=LOAD_S)
        states = [job.state for job in jobs]
        assert states == [State.SUCCEEDED, State.FAILED, State.SUCCEEDED, State.SUCCEEDED]
        assert [client.result(jobs[n].id) for n in (0, 2, 3)] == [3, 5, 7]
        assert "CUDA" in json.loads(jobs[1].error_json)["message"]
        # One under the batch, one under the item that was to blame; no more.
        wait_until(lambda: worker.states()["lookup"]["lost"] == 3, "two more are lost")
        worker.wait_ready("lookup", timeout_s=LOAD_S)
        (after,) = client.wait(*client.submit("lookup", 9), timeout_s=LOAD_S)
        assert (after.state, client.result(after.id)) == (State.SUCCEEDED, 9)
    assert len(set(log.read_text().split())) <= 4
