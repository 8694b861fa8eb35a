"""The scripts' text: of the version that runs, whatever is installed beneath it meanwhile."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path

import pytest

from headrace.redis import keys, scripts
from headrace.redis.scripts import ScriptFolder, load_command

ROOT = Path(__file__).parents[4]
#: The packages with the scripts of extensions.
EXTENSIONS = sorted(
    ".".join(file.parent.relative_to(ROOT).parts)
    for pattern in ("extensions/*/redis/__init__.py", "headrace/*/redis/__init__.py")
    for file in ROOT.glob(pattern)
)


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
    folders = (Path(scripts.__file__).parent, ROOT / "extensions")
    for file in (file for folder in folders for file in folder.rglob("*.lua")):
        assert not written.findall(file.read_text()), f"{file}: take it from headrace/redis/keys.py"
    for name in scripts.NAMES:
        assert "keys." not in re.sub(r"--.*", "", scripts.script(name).source), name


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_scripts_of_extensions(extension: str) -> None:
    package = importlib.import_module(extension)
    folder: ScriptFolder = package.SCRIPTS
    assert folder.names
    for name in folder.names:
        assert "keys." not in re.sub(r"--.*", "", folder.script(name).source), name
    own = vars(importlib.import_module(f"{extension}.keys"))
    common = {name for name in own if name in vars(keys) and own[name] is not vars(keys)[name]}
    assert {name for name in common if not name.startswith("__")} == set()


def test_a_script_of_an_extension_includes_what_is_shared_and_has_keys_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "__init__.py": "", "keys.py": "mine = 'hr:mine:'\n",
        "lib/own.lua": "-- @include bucket\nlocal own = keys.mine\n",
        "plain.lua": "return keys.job .. keys.mine\n",
        "deep/included.lua": "-- @include own\nreturn own\n",
    }  # fmt: skip
    for name, text in files.items():
        file = tmp_path / "scripts_of_mine" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = ScriptFolder("scripts_of_mine", importlib.import_module("scripts_of_mine.keys"))
    assert own.names == ("deep/included", "plain")
    plain = own.script("plain")
    assert plain.source.endswith("return 'hr:job:' .. 'hr:mine:'\n")
    included = own.script("deep/included").source
    bucket = scripts.script("access/take_tokens").source.partition("-- @include bucket\n")[0]
    assert included.startswith(bucket)
    assert included.endswith("local own = 'hr:mine:'\n-- @include own\nreturn own\n")
    assert load_command(plain.call([])) == plain.load_command()
