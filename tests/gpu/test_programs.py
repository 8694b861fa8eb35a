"""Programs without a handler on the GPU, against the same on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.job import State
from tests.gpu.conftest import LOAD_S, Start
from tests.harness.programs import TENSORS, Scaled, save_exported, save_script

pytestmark = pytest.mark.gpu


def test_the_gpu_gives_the_answers_of_the_cpu(on_gpu: Start, tmp_path: Path) -> None:
    script = str(save_script(tmp_path / "m.pt", Scaled()))
    exported = str(save_exported(tmp_path / "m.pt2"))
    common = {"timeout_s": 300, "load_timeout_s": LOAD_S}
    models: dict[str, dict[str, Any]] = {
        "script": {"source": script, "tensors": TENSORS, **common},
        "exported": {"source": exported, **common},
        "cpu": {"source": exported, "device": "cpu", **common},
    }
    with on_gpu(**models) as (worker, client):
        found = []
        for model in models:
            worker.wait_ready(model, timeout_s=LOAD_S)
            inputs = [{"x": [n, n, n], "scale": 2} for n in range(5)]
            jobs = client.wait(*client.submit(model, *inputs), timeout_s=LOAD_S)
            assert [job.state for job in jobs] == [State.SUCCEEDED] * 5
            found.append([client.result(job.id) for job in jobs])
    assert found[0] == found[1] == found[2]
