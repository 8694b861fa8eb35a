"""The last comparison is used for the same model and inputs only, and not for ever."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from extensions.tuning.optimize import kept
from extensions.tuning.optimize.report import Comparison

COMPARISON = Comparison(model="m", device="cpu", variants=[])


def frame_of(folder: Path, **changes: Any) -> dict[str, Any]:
    frame = {
        "model": "m", "model_dir": str(folder), "handler": "own.py", "weights": "", "inputs": "",
        "options": {}, "variants": [1], "sizes": [1], "rounds": 3, "max_batch_size": 8,
    }  # fmt: skip
    return {**frame, **changes}


def test_a_comparison_is_found_by_what_it_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = tmp_path / "own.py"
    handler.touch()
    assert kept.read(tmp_path, frame_of(tmp_path)) is None
    kept.write(tmp_path, frame_of(tmp_path), COMPARISON)
    found = kept.read(tmp_path, frame_of(tmp_path, sizes=[1, 16], rounds=9, max_batch_size=64))
    assert found is not None
    assert found[0] == COMPARISON
    assert found[1] >= 0
    for change in ({"options": {"a": 1}}, {"inputs": "photos"}, {"weights": "w.pt"}):
        assert kept.read(tmp_path, frame_of(tmp_path, **change)) is None
    week_s = 7 * 86_400
    with monkeypatch.context() as later:
        now = time.time()
        later.setattr(time, "time", lambda: now + week_s + 1)
        assert kept.read(tmp_path, frame_of(tmp_path)) is None
    os.utime(handler, ns=(1, 1))
    assert kept.read(tmp_path, frame_of(tmp_path)) is None


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "compared").touch()
    kept.write(tmp_path, frame_of(tmp_path), COMPARISON)
    assert kept.read(tmp_path, frame_of(tmp_path)) is None
