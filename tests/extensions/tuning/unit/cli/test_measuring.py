"""What `optimize` asks of its process, and what `tune` uses of the last comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.tuning.bench.measurement import Objective
from extensions.tuning.bench.reservation import Reservation
from extensions.tuning.cli import optimize, tune
from extensions.tuning.optimize.candidates import candidates
from extensions.tuning.optimize.report import LATE, BatchTime, Comparison, Variant
from extensions.tuning.tune.tuning import Plan
from headrace.config.model.catalog import ModelConfig, load_catalog
from headrace.config.model.optimize import Optimize
from tests.harness.workers.worker import write_models

TIMES = [BatchTime(size=n, inference_ms=n, low_ms=n, high_ms=n) for n in (1, 16)]
INT8 = [one for one in candidates("cpu") if one.precision == "int8"]
QUIET = {"load_before": 0.1, "host_cores": 2}


@pytest.fixture
def model(tmp_path: Path) -> ModelConfig:
    return load_catalog(write_models(tmp_path, digits={"handler": "digits"})).get("digits")


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The frames of the processes that measure; each has measured eager alone."""
    found: list[dict[str, Any]] = []

    def measured(
        frame: dict[str, Any], config: Any, limit_s: Any, keep: Callable[[Comparison], None]
    ) -> Comparison:
        found.append(frame)
        comparison = comparison_of()
        keep(comparison)
        return comparison

    monkeypatch.setattr(optimize, "_measured", measured)
    return found


def comparison_of(*variants: Variant, **changes: Any) -> Comparison:
    eager = Variant(optimize=Optimize(), times=TIMES)
    found = Comparison(model="digits", device="cpu", variants=[eager, *variants], environment=QUIET)
    return msgspec.structs.replace(found, **changes)


def measure(model: ModelConfig, folder: Path, **options: Any) -> Comparison:
    return optimize.compared(
        model, folder, "cpu", [Optimize(backend="aot")], sizes=(1,), rounds=3, inputs="",
        state_dir=folder, **options,
    )  # fmt: skip


def test_the_budget_and_again_reach_the_process(
    model: ModelConfig, frames: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = measure(model, tmp_path, limit_s=100.0, again=True)
    assert (frames[0]["load_limit_s"], frames[0]["again"]) == (85.0, True)
    assert [(one.optimize.backend, one.refused) for one in found.variants[1:]] == [("aot", LATE)]
    assert found.cut


def calibration(model: ModelConfig, folder: Path, budget_s: float, **plan: Any) -> Any:
    subject = tune._Subject(
        model="digits", present={}, example=None, load_timeout_s=1, config=model, state_dir=folder,
        reservation=Reservation.__new__(Reservation), models_file=folder / "models.yaml",
    )  # fmt: skip
    objective = Objective(percentile=99, latency_ms=1.0)
    return tune._Calibration(
        subject, None,
        Plan(model="digits", objective=objective, budget_s=budget_s, folder=folder, present={},
             input="", where="private", **plan),
    )  # fmt: skip


def test_a_short_tuning_uses_a_comparison_that_has_the_likely_winners(
    model: ModelConfig, frames: list[dict[str, Any]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def keep(comparison: Comparison) -> None:
        with monkeypatch.context() as once:
            once.setattr(optimize, "_measured", lambda *args: args[3](comparison) or comparison)
            measure(model, tmp_path)

    keep(comparison_of(*(Variant(optimize=one, times=TIMES) for one in INT8)))
    short = calibration(model, tmp_path, 300.0)
    assert short.measures is False
    assert [one.optimize.name for one in short.compare(60.0).variants[1:3]] == [
        "openvino int8", "onnxruntime int8",
    ]  # fmt: skip
    assert "uses the times of the variants that were measured 0 s ago" in capsys.readouterr().err
    assert frames == []
    # A longer one, or one that is resumed, measures all of them.
    assert calibration(model, tmp_path, 3600.0).measures
    assert calibration(model, tmp_path, 300.0, resume=True).measures
    # So does any if a likely winner was not measured, or if the machine was busy.
    keep(comparison_of(Variant(optimize=INT8[0], times=TIMES)))
    assert calibration(model, tmp_path, 300.0).measures
    busy = {**QUIET, "load_before": 9.0}
    keep(comparison_of(*(Variant(optimize=one, times=TIMES) for one in INT8), environment=busy))
    again = calibration(model, tmp_path, 300.0)
    assert again.measures
    # It leaves out what takes long to build, and measures few sizes.
    found = again.compare(60.0)
    backends = [one["backend"] for one in frames[0]["variants"]]
    assert backends == ["openvino", "onnxruntime", "openvino", "onnxruntime", "torchscript"]
    assert tuple(frames[0]["sizes"]) == tune.FEW_SIZES
    assert [one.optimize.backend for one in found.variants[-2:]] == ["aot", "compile"]
    assert all(one.refused == LATE for one in found.variants[-2:])
