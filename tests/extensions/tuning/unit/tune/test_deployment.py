"""The folders and files of the servers on which trials run."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from extensions.tuning.tune.deployment import PrivateDeployment
from extensions.tuning.tune.space import Candidate


def no_process(*_: Any, **__: Any) -> None:
    raise InterruptedError


class Endless:
    """A server that does not end while the user waits; then the user presses Ctrl-C again."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def send_signal(self, _: int) -> None: ...

    def poll(self) -> None:
        return None

    def wait(self, _: float) -> None:
        raise KeyboardInterrupt


def test_a_start_removes_the_folders_that_a_killed_tuning_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", no_process)
    folder = tmp_path / "tune-m"
    builds = tmp_path / "state" / "optimized"
    build = builds / "build"
    build.mkdir(parents=True)
    left = folder / "server" / "state-left"
    left.mkdir(parents=True)
    (left / "redis.aof").write_text("jobs")
    (left / "optimized").symlink_to(builds)
    models = tmp_path / "models.yaml"
    deployment = PrivateDeployment("m", {}, {}, models, folder, builds, 60, {})
    with pytest.raises(InterruptedError):
        deployment.use(Candidate(label="", options={}))
    states = [path.name for path in (folder / "server").iterdir() if path.is_dir()]
    assert len(states) == 1
    assert (folder / "server" / states[0] / "optimized").resolve() == builds.resolve()
    assert "state-left" not in states
    assert build.is_dir()
    deployment.close()
    assert list((folder / "server").glob("state-*")) == []


def test_the_models_file_of_a_killed_tuning_is_removed_and_that_of_a_running_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", no_process)
    left = tmp_path / ".headrace-tune-other.yaml"
    left.write_text("models: {}")
    running = tmp_path / ".headrace-tune-running.yaml"
    with running.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        mine = PrivateDeployment(
            "m", {}, {}, tmp_path / "models.yaml", tmp_path / "tune-m", tmp_path / "builds", 60, {}
        )
        with pytest.raises(InterruptedError):
            mine.use(Candidate(label="", options={"max_batch_size": 8}))
        own = set(tmp_path.glob(".headrace-tune-*")) - {running}
        assert len(own) == 1
        assert left not in own
        assert yaml.safe_load(own.pop().read_text()) == {"models": {"m": {"max_batch_size": 8}}}
        mine.close()
        assert list(tmp_path.glob(".headrace-tune-*")) == [running]


def test_a_second_interrupt_leaves_no_models_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Endless)
    monkeypatch.setattr(PrivateDeployment, "_ready", lambda _: None)
    deployment = PrivateDeployment(
        "m", {}, {}, tmp_path / "models.yaml", tmp_path / "tune-m", tmp_path / "builds", 60, {}
    )
    deployment.use(Candidate(label="", options={}))
    with pytest.raises(KeyboardInterrupt):
        deployment.close()
    assert list(tmp_path.glob(".headrace-tune-*")) == []
