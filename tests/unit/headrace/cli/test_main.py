"""The `headrace` command before it knows which command: its start, its version, its help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from headrace import __version__
from headrace.cli.main import app, only
from tests.harness.servers.up import clean_environment

INTERRUPTED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n"
#: Ctrl-C while typer is imported, which is the first, and while it puts the commands together.
IMPORTING = {"typer.py": INTERRUPTED}
BUILDING = {
    "sitecustomize.py": f"""
import sys, importlib.abc

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "headrace.cli.jobs.submit":
            import typer
            def interrupted(*_, **__):
                exec({INTERRUPTED!r})
            typer.main.get_command = interrupted

sys.meta_path.insert(0, Interrupting())
"""
}


@pytest.mark.parametrize("files", [IMPORTING, BUILDING], ids=["importing", "building"])
def test_ctrl_c_while_it_starts_ends_it_without_a_traceback(
    tmp_path: Path, files: dict[str, str]
) -> None:
    for name, source in files.items():
        (tmp_path / name).write_text(source)
    environment = clean_environment()
    path = os.pathsep.join((str(tmp_path), environment.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-c", "from headrace.__main__ import main; main()", "version"],
        env={**environment, "PYTHONPATH": path}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize("asked", ["--version", "version"])
def test_the_version_is_printed(asked: str) -> None:
    shown = CliRunner().invoke(app, [asked])
    assert (shown.exit_code, shown.output) == (0, f"{__version__}\n")


@pytest.mark.parametrize("command", ["", "runs", "queues", "dead", "keys", "webhooks"])
def test_the_list_of_commands_cuts_nothing_off(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0
    assert "..." not in shown.output.partition("Commands:")[2]


def test_a_command_is_alone_what_it_is_among_all() -> None:
    for name in get_group(app).commands:
        alone = only([name])
        assert list(get_group(alone).commands) == [name]
        shown, among_all = (
            CliRunner().invoke(each, [name, "--help"], prog_name="headrace")
            for each in (alone, app)
        )
        assert (shown.exit_code, shown.output) == (0, among_all.output)


@pytest.mark.parametrize(
    "asked", [[], ["--help"], ["--version"], ["queus"], ["check_config"], [""]]
)
def test_what_is_no_command_is_for_all_of_them_to_answer(asked: list[str]) -> None:
    assert only(asked) is app
