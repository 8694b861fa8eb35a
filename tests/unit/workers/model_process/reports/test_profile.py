"""Profiles of a process: what is counted, and the folder for files."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from typing_extensions import override

from headrace.generator import Generator
from workers.model_process.context import no_span
from workers.model_process.executor import BatchExecutor
from workers.model_process.reports import profile
from workers.model_process.reports.profile import ProfileFailed, Profiler
from workers.protocol.frames import Profiled, StartProfile


class Steps(Generator):
    """A generator of which no method is called."""

    def budget(self) -> Any:
        raise NotImplementedError

    def add(self, *_: Any) -> None:
        raise NotImplementedError

    def step(self) -> Any:
        raise NotImplementedError

    def cancel(self, request_id: str) -> None:
        raise NotImplementedError


class Executor:
    """Has what a profile uses of an executor."""

    def __init__(self) -> None:
        self.handler = Steps()
        self.span: Any = no_span


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def profiled(batches: int, steps: int, over: threading.Event | None = None) -> str:
    """Profile steps; one more is running when the profile ends. Return the table.

    Args:
        batches: how many steps are requested.
        steps: how many end.
        over: is set when the last one runs.
    """
    answered = threading.Event()
    sent: list[Profiled] = []

    def send(frame: Profiled) -> None:
        sent.append(frame)
        answered.set()

    executor = Executor()
    profiler = Profiler(send)
    profiler.executor = cast("BatchExecutor", executor)
    profiler.start(StartProfile("x", "trace", batches, 600))
    while executor.span is no_span:
        assert not answered.wait(0.001)
    for n in range(steps + 1):
        with executor.span("step", 3):
            torch.ones(3).sum()
            if n == steps:
                if over is not None:
                    over.set()
                answered.wait()
    (frame,) = sent
    files, error = frame.files, frame.error
    assert error == ""
    table: bytes = files["operators.txt"]
    return table.decode()


def calls_of_step(table: str) -> int:
    (row,) = (line for line in table.splitlines() if "step: 3 requests" in line)
    return int(row.split()[-1])


def test_a_step_that_begins_after_the_last_one_is_not_in_the_table() -> None:
    table = profiled(batches=3, steps=3)
    assert table.startswith("The operators of 3 steps, the dearest first.")
    assert calls_of_step(table) == 3


def test_a_step_that_runs_when_the_time_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    class Waits(threading.Event):
        """Its time ends when `over` is set."""

        @override
        def wait(self, timeout: float | None = None) -> bool:
            return over.wait() and self.is_set()

    module = SimpleNamespace(Event=Waits, Thread=threading.Thread, Lock=threading.Lock)
    monkeypatch.setattr(profile, "threading", module)
    table = profiled(batches=100, steps=2, over=over)
    assert table.startswith("The operators of 2 steps and a step that had not ended, the dearest")
    assert calls_of_step(table) == 3


def test_a_folder_that_another_process_locks_first_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, locks = tempfile.mkdtemp, list[int]()

    def made(**given: Any) -> str:
        path: str = real(**given)
        if not locks:
            # A process that starts looks for what killed ones have left.
            locks.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
            fcntl.flock(locks[0], fcntl.LOCK_EX)
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", made)
    with profile._own_folder() as own:
        assert len(list(folder.iterdir())) == 2
        assert profile._locked(own) is None
    assert not own.exists()
    os.close(locks[0])
    profile._remove_left_folders()
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_locked_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(ProfileFailed, match="No locks available; set TMPDIR"),
        profile._own_folder(),
    ):
        pass
    assert list(folder.iterdir()) == []
    # At the start of a process it is left alone.
    left = tempfile.mkdtemp(prefix="headrace-profile-")
    profile._remove_left_folders()
    assert Path(left).exists()
