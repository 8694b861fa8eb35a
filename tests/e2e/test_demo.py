"""`make demo EXIT=1` without make: what it prints, its exit status, and that it leaves nothing."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from headrace.server.ports import free_port
from tests.harness.processes.processes import descendants, gone
from tests.harness.servers.up import ROOT, clean_environment, write_models
from tests.harness.wait import wait_until


def demo(
    folder: Path, output: Path, *arguments: str, models: Path | None = None
) -> subprocess.Popen[bytes]:
    """The demo of a folder; with all models that Headrace brings, unless told otherwise."""
    command = [
        # As a script does it with `&`.
        "sh", "-c", 'trap "" INT; exec "$@"', "sh",
        sys.executable, str(folder / "demo.py"), "--port", str(free_port()),
        "--state-dir", str(output.parent / "state"), *arguments,
    ]  # fmt: skip
    variables = {"HEADRACE_FLOWER_PORT": str(free_port())}
    if models is not None:
        variables["HEADRACE_MODELS_FILE"] = str(models)
    with output.open("wb") as file:
        return subprocess.Popen(
            command, cwd=output.parent, env=clean_environment(**variables), stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def digits_alone(folder: Path) -> Path:
    """What the demo asks; another model would load torch once more, and be asked nothing."""
    return write_models(folder, {"digits": {"handler": "digits"}})


def test_a_wrong_answer_ends_it_with_status_1(tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    (folder / "digits").mkdir(parents=True)
    shutil.copy(ROOT / "examples/demo.py", folder)
    shutil.copy(ROOT / "examples/digits/7_0820.png", folder / "digits/7_0820.png")
    shutil.copy(ROOT / "examples/digits/7_0820.png", folder / "digits/8_0820.png")
    output = tmp_path / "output"
    alone = ("--no-flower", "--no-background", "--no-runner")
    with demo(folder, output, "--exit", *alone, models=digits_alone(tmp_path)) as process:
        assert process.wait(250) == 1, output.read_text()
    text = output.read_text()
    assert "1 of 2 right" in text
    assert "flower" not in text
    assert "WRONG" in text


def test_it_serves_until_ctrl_c_and_dies_with_everything(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with demo(ROOT / "examples", output) as process:
        try:
            wait_until(
                lambda: "Headrace runs until Ctrl-C" in output.read_text(), "it is done", 200
            )
            text = output.read_text()
            assert "12 of 12 right" in text
            assert "containing a JSON document) to a Python object." in text
            assert "curl -s -T" in text
            pids = descendants(process.pid)
            assert len(pids) >= 6
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert gone(*pids)
        finally:
            process.kill()


def test_kill_9_of_the_demo_ends_the_system(tmp_path: Path) -> None:
    output = tmp_path / "output"
    models = digits_alone(tmp_path)
    with demo(ROOT / "examples", output, models=models) as process:
        try:
            wait_until(
                lambda: re.search(r"^headrace +\| up", output.read_text(), re.MULTILINE),
                "the system is up", 200,
            )  # fmt: skip
            pids = descendants(process.pid)
            assert len(pids) >= 5
        finally:
            process.kill()
    # An orderly stop, for which the demo's death asked.
    wait_until(lambda: gone(*pids), "everything is gone", timeout_s=90)
