"""The models file of a module of tests: its FILE."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "models.yaml"
    path.write_text(request.module.FILE)
    return path
