"""`headrace optimize`: the variants of a model, measured in processes of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from extensions.tuning.optimize.report import Comparison
from tests.harness.clients.commands import headrace_here
from tests.harness.servers.up import clean_environment, headrace
from tests.harness.variants import IMAGES
from tests.harness.wait import wait_until
from tests.harness.workers.worker import write_models

WAITS = """
import threading
from pathlib import Path

from headrace import Handler


class Waits(Handler):
    def example_input(self):
        return "a"

    def inference(self, items):
        if len(items) >= WAITS_FROM:
            Path(__file__).with_name("began").touch()
            threading.Event().wait()
        return items
"""


def test_it_measures_what_is_named_and_says_why_the_rest_is_not_used(tmp_path: Path) -> None:
    write_models(tmp_path, digits={"handler": "digits", "max_batch_size": 4})
    done = headrace(
        "optimize", "digits", "--compare", "--input", str(IMAGES), "--variants",
        "eager:bfloat16,tensorrt", "--max-error", "1e-9", "--rounds", "3", "--json", "c.json",
        "--html", "c.html", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode((tmp_path / "c.json").read_bytes(), type=Comparison)
    eager, half, tensorrt = found.variants
    assert (found.model, found.device, found.inputs) == ("digits", "cpu", str(IMAGES))
    assert found.threads > 0
    for variant in (eager, half):
        assert [time.size for time in variant.times] == [1, 4]
        assert all(0 < one.low_ms <= one.inference_ms <= one.high_ms for one in variant.times)
        assert all(one.preprocess_ms > 0 for one in variant.times)
        assert variant.memory_mb > 50
        assert variant.load_s > 0
    assert (eager.error, eager.refused) == (0, "")
    assert half.error > 0
    assert half.agreement == 1
    assert half.build_s > 0
    assert (half.kept_s, "in an earlier run" in done.stderr) == (0, False)
    assert "more than max_error, 1e-09" in half.refused
    assert tensorrt.times == []
    assert "pip install 'headrace[tensorrt]'" in tensorrt.refused
    assert "eager is best" in done.stderr
    assert [row.split()[:2] for row in done.stdout.splitlines()] == [
        ["backend", "precision"], ["eager", "float"], ["eager", "bfloat16"], ["tensorrt", "float"],
    ]  # fmt: skip
    assert (tmp_path / "c.html").read_text().startswith("<!doctype html>")
    # The verdict on the outputs is kept, and its age is printed.
    kept = headrace(
        "optimize", "digits", "--input", str(IMAGES), "--variants", "eager:bfloat16",
        "--max-error", "1e-9", "--rounds", "3", "--budget", "10m", cwd=tmp_path,
    )  # fmt: skip
    assert kept.returncode == 0, kept.stderr
    assert "outputs were compared in an earlier run: eager bfloat16 (" in kept.stderr
    assert "more than max_error, 1e-09" in kept.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--variants", "fast"), "--variants: 'fast': backend: expected aot, compile, eager, "),
        (("--variants", "aot:int8"), "aot has no int8; set backend to onnxruntime or openvino"),
        (("--sizes", "1,99"), "no list of batch sizes up to max_batch_size, 4"),
        (("--sizes", "few"), "no list of batch sizes"),
        (("--max-error", "0"), "--max-error: 0 is too small; give more than 0"),
        (("--input", "missing"), "--input: missing does not exist"),
        (("--input", "empty"), "--input: empty has no files"),
        (("--json", "missing/c.json"), "missing/c.json cannot be written"),
        (("--html", "missing/c.html"), "missing/c.html cannot be written"),
        (("--budget", "soon"), "--budget: 'soon' is no time. Give 20m, 90s or 2h"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(
    arguments: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    write_models(tmp_path, digits={"handler": "digits", "max_batch_size": 4})
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/.hidden").touch()
    done = headrace_here("optimize", "digits", *arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert told in done.stderr


@pytest.mark.parametrize("command", [("optimize",), ("tune", "--slo", "p99=1s")])
def test_a_pipeline_is_told_by_its_models(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(
        "models: {echo: {handler: echo}}\n"
        "pipelines: {both: {stages: {one: {model: echo}, two: {model: echo}}}}\n"
    )
    done = headrace_here(*command, "both", cwd=tmp_path)
    assert done.returncode == 2
    assert f"both is a pipeline; {command[0]} its models: echo" in done.stderr


def test_inputs_that_the_handler_refuses_are_not_measured(tmp_path: Path) -> None:
    write_models(tmp_path, digits={"handler": "digits", "max_batch_size": 4})
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    (inputs / "0.txt").write_text("no image")
    arguments = ("optimize", "digits", "--input", "inputs", "--variants", "eager")
    done = headrace(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "the handler accepts none of the 1 inputs: expected an image" in done.stderr
    assert done.stdout == ""
    # One good input among others is enough, and each batch is made of it.
    shutil.copy(next(IMAGES.glob("*.png")), inputs)
    done = headrace(*arguments, "--json", "c.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode((tmp_path / "c.json").read_bytes(), type=Comparison)
    assert all(time.inference_ms > 0.01 for time in found.variants[0].times)
    left_out = "leaves out 1 of 2 inputs that the handler refuses: expected an image"
    assert left_out in found.left_out
    assert left_out in done.stderr


def test_a_model_without_a_module_is_told(tmp_path: Path) -> None:
    write_models(tmp_path, echo={"handler": "echo"})
    done = headrace("optimize", "echo", "--variants", "torchscript", cwd=tmp_path)
    assert "echo cannot be measured" in done.stderr or "no module to optimize" in done.stderr


@pytest.mark.parametrize(
    ("number", "code", "waits_from", "text"),
    [
        (signal.SIGINT, 130, 1, "interrupted; nothing was measured until then"),
        (signal.SIGTERM, 143, 2, "ended by SIGTERM; the figures are those that were measured"),
    ],
)
def test_a_signal_ends_all_of_its_processes_and_what_was_measured_is_printed(
    number: signal.Signals, code: int, waits_from: int, text: str, tmp_path: Path
) -> None:
    (tmp_path / "waits.py").write_text(f"{WAITS}\n\nWAITS_FROM = {waits_from}\n")
    write_models(tmp_path, m={"handler": "waits.py", "max_batch_size": 2})
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "headrace", "optimize", "m", "--json", "c.json"],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            wait_until((tmp_path / "began").exists, "the first batch runs")
            # As a terminal does: each process of the group gets it.
            os.killpg(process.pid, number)
            printed, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code
    assert log.decode().startswith(f"headrace: loads eager float\nheadrace: {text}")
    assert "Traceback" not in log.decode()
    measured = waits_from > 1
    assert (b"eager    float" in printed) is measured
    assert (tmp_path / "c.json").exists() is measured
    if measured:
        found = msgspec.json.decode((tmp_path / "c.json").read_bytes(), type=Comparison)
        assert found.cut
        assert [time.size for time in found.variants[0].times] == [1]
