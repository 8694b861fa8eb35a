"""The `headrace` command before it knows which command: its start, its version, its help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from typer.main import get_group
from typer.testing import CliRunner

from headrace import __version__
from headrace.cli.main import app, every_command, only
from headrace.config.extensions import Command, Extension, found
from tests.harness.extensions import installed
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
    shown = CliRunner().invoke(every_command(), [*command.split(), "--help"])
    assert shown.exit_code == 0
    assert "..." not in shown.output.partition("Commands:")[2]


def test_a_command_is_alone_what_it_is_among_all() -> None:
    whole = every_command()
    for name in get_group(whole).commands:
        alone = only([name])
        assert list(get_group(alone).commands) == [name]
        shown, among_all = (
            CliRunner().invoke(each, [name, "--help"], prog_name="headrace")
            for each in (alone, whole)
        )
        assert (shown.exit_code, shown.output) == (0, among_all.output)


@pytest.mark.parametrize("asked", [[], ["--help"], ["queus"], ["check_config"], [""]])
def test_what_is_no_command_is_for_all_of_them_to_answer(asked: list[str]) -> None:
    assert only(asked) is every_command()


@contextmanager
def commands(**loads: Callable[[], object]) -> Iterator[None]:
    made = {name: Command(load=load) for name, load in loads.items()}
    with installed(Extension(name="mine", summary="", commands=made)):
        yield


def greet(name: str) -> None:
    """Greet someone."""
    typer.echo(f"hello {name}")


def fails() -> object:
    raise RuntimeError("it does not begin")


def test_a_command_of_an_extension_is_loaded_when_it_is_asked_for() -> None:
    asked: list[str] = []

    def group() -> object:
        asked.append("group")
        result = typer.Typer(help="Greet in many ways.")
        result.command()(greet)
        result.command("bow")(greet)
        return result

    def one() -> object:
        asked.append("one")
        return greet

    with commands(many=group, hello=one):
        assert only(["submit"]) is not app
        assert only(["--version"]) is app
        assert asked == []
        done = CliRunner().invoke(only(["many"]), ["many", "bow", "you"])
        assert (done.output, asked) == ("hello you\n", ["group"])
        done = CliRunner().invoke(only(["hello"]), ["hello", "you"])
        assert (done.output, asked) == ("hello you\n", ["group", "one"])
        shown = CliRunner().invoke(only(["--help"]), ["--help"])
        assert "many" in shown.output
        assert "Greet in many ways." in shown.output
        assert "Greet someone." in shown.output


@pytest.mark.parametrize("load", [fails, lambda: 5], ids=["fails", "wrong"])
def test_a_command_that_cannot_be_loaded_stops_no_other(load: Callable[[], object]) -> None:
    with commands(broken=load, version=fails, hello=lambda: greet):
        assert "No such command" in CliRunner().invoke(only(["broken"]), ["broken"]).output
        assert "hello" in CliRunner().invoke(only([]), ["--help"]).output
        assert CliRunner().invoke(only(["version"]), ["version"]).exit_code == 0
        assert "command `broken`" in found().problems["mine"]


def test_the_version_looks_for_no_extension() -> None:
    program = "import sys; from headrace.cli.main import found, main; sys.argv[1:] = ['version']\n"
    program += "try: main()\nfinally: print(found.cache_info().misses)"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env=clean_environment(), timeout=60,
    ).stdout  # fmt: skip
    assert shown.split() == [__version__, "0"]
