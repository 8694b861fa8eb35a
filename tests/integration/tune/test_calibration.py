"""A calibration whose time ends before all is measured: what was measured is used."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from headrace.cli.performance.optimize import compared
from headrace.config.model_catalog import load_catalog
from headrace.config.optimize import Optimize
from headrace.errors import ConfigError
from headrace.optimize.report import Comparison
from tests.harness.processes.processes import descendants, gone
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, write_models
from tests.integration.tune.test_tune import tuning

pytestmark = pytest.mark.timeout(1500)

STUCK: dict[str, Any] = {
    "handler": "stuck.py",
    "max_batch_size": 2,
    "inputs": {"content_types": ["application/json"], "example": 1.0},
}

T = TypeVar("T")


def with_enough_time(attempt: Callable[[float], T | None]) -> T:
    """Try with more and more seconds, as the machine may be slow, until there is a result."""
    limit_s = 10.0
    while (found := attempt(limit_s)) is None:
        limit_s *= 2
        assert limit_s < 600
    return found


def stuck_model(folder: Path, **options: Any) -> Path:
    """A models file and its handler: next to other handlers, `import torch` finds their cuda.py."""
    shutil.copy(HANDLERS / "stuck.py", folder)
    return write_models(folder, stuck={**STUCK, "options": options})


def test_sizes_that_were_measured_are_kept(tmp_path: Path) -> None:
    stuck_model(tmp_path, stuck_from=16)
    (tmp_path / "two.json").write_text("2.0")
    output = tmp_path / "output"

    def attempt(limit_s: float) -> Comparison | None:
        output.write_bytes(b"")
        # Four tenths of the budget are for the calibration.
        arguments = ("--slo", "p50=3s", "--budget", f"{limit_s / 0.4:.0f}s", "--resume")
        given = ("--input", "two.json")
        with tuning(tmp_path, *arguments, *given, model="stuck") as process:

            def goes_on() -> bool:
                assert process.poll() is None, output.read_text()
                return "starts the model" in output.read_text()

            wait_until(goes_on, "the calibration has ended", 60 + 2 * limit_s)
            children = descendants(process.pid)
            process.send_signal(signal.SIGTERM)
            process.wait(120)
            wait_until(lambda: gone(*children), "all have ended")
        if "goes on with what was measured" not in output.read_text():
            return None
        file = tmp_path / "tune-stuck/calibration.json"
        found = msgspec.json.decode(file.read_bytes(), type=Comparison)
        return found if len(found.variants[0].times) == 2 else None

    found = with_enough_time(attempt)

    assert "Traceback" not in output.read_text()
    assert found.cut
    assert found.inputs == str(tmp_path / "two.json")
    eager = found.variants[0]
    assert (eager.optimize, eager.refused) == (Optimize(), "")
    assert [time.size for time in eager.times] == [1, 4]


def test_a_variant_that_is_not_built_in_time_is_left_out(tmp_path: Path) -> None:
    config = load_catalog(stuck_model(tmp_path, stuck_trace=True)).get("stuck")
    wanted = [Optimize(backend="torchscript"), Optimize(backend="eager", precision="bfloat16")]

    def attempt(limit_s: float) -> Comparison | None:
        try:
            found = compared(
                config, tmp_path, "cpu", wanted, sizes=(1, 2), rounds=3, inputs="",
                builds=tmp_path / "builds", limit_s=limit_s,
            )  # fmt: skip
        except ConfigError:
            return None
        return found if len(found.variants[0].times) == 2 else None

    found = with_enough_time(attempt)

    assert found.cut
    assert [variant.optimize for variant in found.variants] == [Optimize(), *wanted]
    eager, stuck, behind = found.variants
    assert [time.size for time in eager.times] == [1, 2]
    for late in (stuck, behind):
        assert late.refused == "it was not built and loaded in time"
        assert late.times == []
