"""A calibration whose time ends before all is measured: what was measured is used."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.tuning.cli import optimize
from extensions.tuning.optimize.report import Comparison
from headrace.config.model.catalog import load_catalog
from headrace.config.model.optimize import Optimize
from tests.extensions.tuning.integration.tune.test_tune import ROUGH, tuning
from tests.harness.processes.processes import descendants, gone
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, write_models

pytestmark = pytest.mark.timeout(1500)

STUCK: dict[str, Any] = {
    "handler": "stuck.py",
    "max_batch_size": 2,
    "inputs": {"content_types": ["application/json"], "example": 1.0},
}

#: A tuning whose time for the calibration ends when the handler does not return from a batch.
#: Otherwise the speed of the machine would decide which sizes are measured by then. There is only
#: the variant eager, as others would be checked with such a batch before any size is measured.
ENDS_WHEN_STUCK = f"""
import subprocess, time
from pathlib import Path
from headrace.config.model import optimize
optimize.possible = lambda _: []
wait = subprocess.Popen.wait
def until_stuck(self, timeout=None):
    if timeout is None or timeout < 100:  # of a server
        return wait(self, timeout)
    while self.poll() is None and not Path("is-stuck").exists():
        time.sleep(0.05)
    return wait(self, 1.0)
subprocess.Popen.wait = until_stuck
{ROUGH}
"""
#: The share of an hour in which the variants must load.
LOADING = 10 / 3600


def stuck_model(folder: Path, **options: Any) -> Path:
    """Write a models file and a copy of the handler.

    Next to the other handlers, `import torch` would find their cuda.py.
    """
    shutil.copy(HANDLERS / "trouble/stuck.py", folder)
    return write_models(folder, stuck={**STUCK, "options": options})


def test_measured_sizes_are_kept_and_an_interrupted_tuning_names_the_way_to_go_on(
    tmp_path: Path,
) -> None:
    stuck_model(tmp_path, stuck_from=16, marker=str(tmp_path / "is-stuck"))
    (tmp_path / "two.json").write_text("2.0")
    output = tmp_path / "output"
    log = tmp_path / "tune-stuck/server/server.log"
    arguments = ("--slo", "p50=3s", "--budget", "1h", "--input", "two.json")
    with tuning(tmp_path, *arguments, model="stuck", program=ENDS_WHEN_STUCK) as process:

        def begun() -> bool:
            assert process.poll() is None, output.read_text()
            return log.exists() and log.stat().st_size > 0

        wait_until(begun, "the server of the trials has begun", 600)
        children = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 143
        wait_until(lambda: gone(*children), "all of its processes have ended", 120)

    text = output.read_text()
    assert "goes on with what was measured" in text
    assert "--resume goes on" in text
    assert "Traceback" not in text
    assert not list(tmp_path.glob(".headrace-tune*"))
    file = tmp_path / "tune-stuck/calibration.json"
    found = msgspec.json.decode(file.read_bytes(), type=Comparison)
    assert found.cut
    assert found.inputs == str(tmp_path / "two.json")
    eager = found.variants[0]
    assert (eager.optimize, eager.refused) == (Optimize(), "")
    assert [time.size for time in eager.times] == [1, 4]


def test_a_variant_that_is_not_built_in_time_is_left_out(
    tmp_path: Path,
) -> None:
    # The batches have much more time than the builds, so that a slow machine measures them too.
    config = load_catalog(stuck_model(tmp_path, stuck_trace=True)).get("stuck")
    wanted = [Optimize(backend="torchscript"), Optimize(backend="eager", precision="bfloat16")]

    found = optimize.compared(
        config, tmp_path, "cpu", wanted, sizes=(1, 2), rounds=3, inputs="",
        state_dir=tmp_path, limit_s=3600, loading=LOADING,
    )  # fmt: skip

    assert found.cut
    assert [variant.optimize for variant in found.variants] == [Optimize(), *wanted]
    eager, stuck, behind = found.variants
    assert [time.size for time in eager.times] == [1, 2]
    for late in (stuck, behind):
        assert late.refused == "it was not built and loaded in time"
        assert late.times == []
