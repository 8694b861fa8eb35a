"""The scripts' text: of the version that runs, whatever is installed beneath it meanwhile."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path

import pytest

from headrace.redis import scripts


def test_an_upgrade_under_a_running_process_does_not_change_its_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "installed_scripts"
    # What Python compiles beside them, in another process, may be gone before it is copied.
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(scripts.__file__).parent, folder, ignore=ignored)
    monkeypatch.syspath_prepend(tmp_path)
    running = importlib.import_module(folder.name)
    for file in folder.rglob("*.lua"):
        file.write_text("return 'of the next version'")
    for name in scripts.NAMES:
        assert running.script(name).source == scripts.script(name).source


def test_no_script_writes_a_key_itself() -> None:
    written = re.compile(r"'(hr:|headrace[.:](?!errors)|celery-task-meta-)")
    for file in Path(scripts.__file__).parent.rglob("*.lua"):
        assert not written.findall(file.read_text()), f"{file}: take it from headrace/redis/keys.py"
    for name in scripts.NAMES:
        assert "keys." not in re.sub(r"--.*", "", scripts.script(name).source), name
