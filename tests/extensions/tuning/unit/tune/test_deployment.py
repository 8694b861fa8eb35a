"""The folders of the servers on which trials run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from extensions.tuning.tune.deployment import PrivateDeployment
from extensions.tuning.tune.space import Candidate


def test_a_start_removes_the_folders_that_a_killed_tuning_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: Any, **__: Any) -> None:
        raise InterruptedError

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
