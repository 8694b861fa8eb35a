"""The pid file: which process counts as a server, and how one is stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from extensions.torchserve.cli.torchserve import run
from extensions.torchserve.server import process
from headrace.errors import ConfigError
from tests.harness.wait import wait_until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(process, "pid_file", lambda: tmp_path / process.PID_NAME)
    return tmp_path


@pytest.fixture
def sleeper(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program called torchserve, which writes a line when it runs."""
    program = folder / "torchserve"
    program.write_text("import time; print('runs', flush=True); time.sleep(600)")
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        yield running
        running.kill()


def test_a_server_is_known_by_its_pid_and_its_name(sleeper: subprocess.Popen[bytes]) -> None:
    assert process.running() is None
    process.write_pid(sleeper.pid)
    assert process.running() == (sleeper.pid, True)
    process.write_pid(1)  # a program of another name
    assert process.running() is None
    process.write_pid(0)
    assert process.running() is None
    process.pid_file().write_text("words")
    assert process.running() is None


def test_torchserve_itself_is_told_apart(folder: Path) -> None:
    program = "print('runs', flush=True); import time; time.sleep(600)"
    java = [sys.executable, "-c", program, "org.pytorch.serve.ModelServer"]
    with subprocess.Popen(java, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        process.write_pid(running.pid)
        assert process.running() == (running.pid, False)
        with pytest.raises(SystemExit) as ended:
            run(["--stop"])
        assert ended.value.code == 1
        assert running.poll() is None
        running.kill()


def test_a_stop_waits_for_the_end(sleeper: subprocess.Popen[bytes]) -> None:
    assert process.stop(sleeper.pid)
    wait_until(lambda: sleeper.poll() is not None, "it has ended")


def test_a_stop_that_takes_too_long(folder: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('runs', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        assert not process.stop(running.pid, limit_s=0)
        running.kill()


def test_the_file_is_there_while_the_server_runs() -> None:
    with process.pid_written():
        assert process.pid_file().read_text() == str(os.getpid())
    assert not process.pid_file().exists()
    with process.pid_written():
        process.write_pid(0)
    assert process.pid_file().exists()


def test_a_file_that_cannot_be_written(folder: Path) -> None:
    process.pid_file().mkdir()
    with pytest.raises(ConfigError, match="it cannot be written: Is a directory"):
        process.write_pid(1)
